"""The sender of snapshots: who is told what, when again, and when no more."""

import pytest

from postroad.cells import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    CellAddress,
    DomainInfo,
    Role,
    Route,
    RouteAdvertisement,
    RouteAdvertiser,
    RouteAdvertiserConfig,
    RouteTable,
    RoutingUpdate,
    ShutdownNotice,
    build_advertisement,
)
from postroad.core.errors import ConfigError
from postroad.core.timing import NEVER

CONFIG = RouteAdvertiserConfig(resend_first_s=1, resend_max_s=4, check_interval_s=30)
CORE = DomainInfo("C1", Role.CORE, "east")
SATELLITE = DomainInfo("S1", Role.SATELLITE, "east")
BOTH = RouteAdvertisement.of(["q"], ["t"], "east")
QUEUES = RouteAdvertisement.of(["q"], [], "east")
EMPTY = RouteAdvertisement(zone="east")


def make_announcer(
    domain: DomainInfo = CORE, *, offer: RouteAdvertisement | None = None
) -> RouteAdvertiser:
    announcer = RouteAdvertiser(domain, incarnation=7, config=CONFIG)
    if offer is not None:
        announcer.advertise(offer, 0.0)
    return announcer


def sent(announcer: RouteAdvertiser) -> list[tuple[str, RouteAdvertisement]]:
    outgoing = announcer.drain_outgoing()
    return [(name, it.offer) for name, it in outgoing if isinstance(it, AdvertisementUpdate)]


def acknowledge(announcer: RouteAdvertiser, now: float = 0.0) -> None:
    for name, update in announcer.drain_outgoing():
        if isinstance(update, AdvertisementUpdate):
            have = AdvertisementAck(update.incarnation, update.number, update.offer.digest())
            announcer.receive(have, name, now)


def settled(domain: DomainInfo = CORE) -> RouteAdvertiser:
    announcer = make_announcer(domain, offer=BOTH)
    announcer.peer_up("C2", Role.CORE, 0.0)
    acknowledge(announcer)
    return announcer


def test_an_offer_is_told_to_cores_and_the_queues_of_a_core_to_satellites() -> None:
    announcer = make_announcer(offer=BOTH)
    announcer.peer_up("C2", Role.CORE, 0.0)
    announcer.peer_up("S2", Role.SATELLITE, 0.0)
    assert sent(announcer) == [("C2", BOTH), ("S2", QUEUES)]

    announcer = make_announcer(SATELLITE, offer=BOTH)
    announcer.peer_up("C1", Role.CORE, 0.0)
    announcer.peer_up("S2", Role.SATELLITE, 0.0)
    assert sent(announcer) == [("C1", BOTH)]

    announcer = make_announcer()
    announcer.peer_up("C2", Role.CORE, 0.0)
    assert sent(announcer) == [("C2", EMPTY)]


def test_a_change_is_told_at_once_with_a_higher_number_and_no_change_is_not() -> None:
    announcer = settled()
    announcer.advertise(BOTH, 5.0)
    assert announcer.drain_outgoing() == []
    announcer.advertise(EMPTY, 5.0)
    ((name, update),) = announcer.drain_outgoing()
    assert (name, update) == ("C2", AdvertisementUpdate(7, 4, EMPTY))
    assert announcer.unacknowledged() == ["C2"]


def test_a_domain_tells_what_its_table_offers_and_satellites_no_topics() -> None:
    cell = CellAddress("a", "C1")
    table = RouteTable(
        [
            Route.to_queue("q", cell),
            Route.to_topic("t", cell),
            Route.to_queue("elsewhere", CellAddress.of_domain("S1")),
        ]
    )
    assert build_advertisement(table, CORE) == BOTH

    announcer = make_announcer(offer=QUEUES)
    announcer.peer_up("S2", Role.SATELLITE, 0.0)
    acknowledge(announcer)
    announcer.advertise(BOTH, 1.0)
    announcer.advertise(QUEUES, 2.0)
    assert announcer.drain_outgoing() == []
    assert announcer.unacknowledged() == []


def test_what_is_not_acknowledged_is_sent_again_ever_more_slowly() -> None:
    announcer = make_announcer(offer=BOTH)
    announcer.peer_up("C2", Role.CORE, 0.0)
    times = []
    for _ in range(6):
        assert sent(announcer) == [("C2", BOTH)]
        times.append(announcer.deadline())
        announcer.tick(announcer.deadline() - 0.1)
        assert announcer.drain_outgoing() == []
        announcer.tick(announcer.deadline())
    assert times == [1, 3, 7, 11, 15, 19]


def test_what_is_sent_again_is_the_newest_and_waits_for_the_acknowledgement() -> None:
    announcer = make_announcer(offer=BOTH)
    announcer.peer_up("C2", Role.CORE, 0.0)
    ((_, first),) = announcer.drain_outgoing()
    announcer.advertise(QUEUES, 0.1)
    announcer.advertise(EMPTY, 0.2)
    assert announcer.drain_outgoing() == []
    assert isinstance(first, AdvertisementUpdate)
    announcer.receive(AdvertisementAck(7, first.number, BOTH.digest()), "C2", 0.3)
    assert sent(announcer) == [("C2", EMPTY)]
    assert announcer.deadline() == 1.3

    announcer = make_announcer(offer=BOTH)
    announcer.peer_up("C2", Role.CORE, 0.0)
    announcer.drain_outgoing()
    announcer.advertise(EMPTY, 0.1)
    announcer.tick(1.0)
    assert sent(announcer) == [("C2", EMPTY)]


def test_an_acknowledgement_settles_it_until_a_check_finds_something_else(
    subtests: pytest.Subtests,
) -> None:
    announcer = settled()
    assert announcer.unacknowledged() == []
    assert announcer.deadline() == 30
    announcer.tick(30.0)
    assert announcer.drain_outgoing() == [("C2", AdvertisementQuery())]
    assert announcer.deadline() == 60

    for have in [
        AdvertisementAck(),
        AdvertisementAck(6, 9, b""),
        AdvertisementAck(7, 1, EMPTY.digest()),
        AdvertisementAck(7, 2, EMPTY.digest()),
    ]:
        with subtests.test(have=have):
            announcer = settled()
            announcer.tick(30.0)
            announcer.drain_outgoing()
            announcer.receive(have, "C2", 30.1)
            assert sent(announcer) == [("C2", BOTH)]
            assert announcer.unacknowledged() == ["C2"]


def test_a_peer_that_is_always_wrong_has_to_wait(subtests: pytest.Subtests) -> None:
    for have in [AdvertisementAck(), AdvertisementAck(7, 2, b"wrong"), AdvertisementAck(7, 1, b"")]:
        with subtests.test(have=have):
            announcer = make_announcer(offer=BOTH)
            announcer.peer_up("C2", Role.CORE, 0.0)
            announcer.drain_outgoing()
            for _ in range(3):
                announcer.receive(have, "C2", 0.1)
            assert announcer.drain_outgoing() == []
            announcer.tick(1.0)
            assert sent(announcer) == [("C2", BOTH)]

    for have in [AdvertisementAck(8, 1, b""), AdvertisementAck(7, 99, b"")]:
        with subtests.test(have=have):
            announcer = settled()
            announcer.receive(have, "C2", 1.0)
            (warning,) = announcer.take_warnings()
            assert f"C2 has heard of another C1, of incarnation {have.incarnation}" in warning
            assert announcer.drain_outgoing() == []
            assert announcer.take_warnings() == []

    for value in [0, -1, float("nan"), float("inf")]:
        with subtests.test(value=value), pytest.raises(ConfigError, match="resend_first_s"):
            RouteAdvertiserConfig(resend_first_s=value)


def test_a_peer_that_comes_again_is_told_again_and_one_that_is_gone_is_forgotten() -> None:
    announcer = settled()
    announcer.peer_up("C2", Role.CORE, 5.0)
    assert sent(announcer) == [("C2", BOTH)]

    announcer = settled()
    announcer.peer_down("C2")
    announcer.peer_down("C2")
    announcer.receive(AdvertisementAck(), "C2", 1.0)
    announcer.advertise(EMPTY, 1.0)
    announcer.tick(100.0)
    assert announcer.drain_outgoing() == []
    assert announcer.deadline() == NEVER


def test_a_core_that_stops_tells_its_satellites_and_a_satellite_nobody() -> None:
    announcer = settled()
    announcer.peer_up("S2", Role.SATELLITE, 0.0)
    acknowledge(announcer)
    announcer.announce_shutdown()
    expected: list[tuple[str, RoutingUpdate]] = [("S2", ShutdownNotice(7))]
    assert announcer.drain_outgoing() == expected

    announcer = settled(SATELLITE)
    announcer.announce_shutdown()
    assert announcer.drain_outgoing() == []

    announcer = settled()
    assert repr(announcer) == "<Announcer of C1: #3, 1 peers, 0 behind>"


def test_a_peer_that_takes_back_what_it_acknowledged_has_to_wait() -> None:
    announcer = settled()
    now = 100.0
    announcer.receive(AdvertisementAck(), "C2", now)
    [(_, snapshot)] = announcer.drain_outgoing()
    assert isinstance(snapshot, AdvertisementUpdate)
    for _ in range(20):
        have = AdvertisementAck(snapshot.incarnation, snapshot.number, BOTH.digest())
        announcer.receive(have, "C2", now)
        assert announcer.unacknowledged() == []
        announcer.receive(AdvertisementAck(), "C2", now)
    assert sent(announcer) == []
    assert announcer.unacknowledged() == ["C2"]
    announcer.tick(announcer.deadline())
    assert sent(announcer) == [("C2", BOTH)]
