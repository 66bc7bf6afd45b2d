"""The sender of snapshots: who is told what, when again, and when no more."""

import pytest

from postroad.cells import CellAddress, Role, Route, RouteAdvertiserConfig, RouteTable
from postroad.cells.addresses import DomainInfo
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    RoutingUpdate,
    ShutdownNotice,
)
from postroad.cells.routing.advertiser import NEVER, RouteAdvertiser, build_advertisement
from postroad.core.errors import ConfigError

CONFIG = RouteAdvertiserConfig(resend_first_s=1, resend_max_s=4, check_interval_s=30)
CORE = DomainInfo("C1", Role.CORE, "east")
SATELLITE = DomainInfo("S1", Role.SATELLITE, "east")
BOTH = RouteAdvertisement.of(["q"], ["t"], "east")
QUEUES = RouteAdvertisement.of(["q"], [], "east")
EMPTY = RouteAdvertisement(zone="east")


def make_advertiser(
    domain: DomainInfo = CORE, *, advertisement: RouteAdvertisement | None = None
) -> RouteAdvertiser:
    advertiser = RouteAdvertiser(domain, incarnation=7, config=CONFIG)
    if advertisement is not None:
        advertiser.advertise(advertisement, 0.0)
    return advertiser


def sent(advertiser: RouteAdvertiser) -> list[tuple[str, RouteAdvertisement]]:
    outgoing = advertiser.drain_outgoing()
    return [
        (name, it.advertisement) for name, it in outgoing if isinstance(it, AdvertisementUpdate)
    ]


def acknowledge(advertiser: RouteAdvertiser, now: float = 0.0) -> None:
    for name, update in advertiser.drain_outgoing():
        if isinstance(update, AdvertisementUpdate):
            ack = AdvertisementAck(update.incarnation, update.number, update.advertisement.digest())
            advertiser.receive(ack, name, now)


def settled(domain: DomainInfo = CORE) -> RouteAdvertiser:
    advertiser = make_advertiser(domain, advertisement=BOTH)
    advertiser.peer_up("C2", Role.CORE, 0.0)
    acknowledge(advertiser)
    return advertiser


def test_an_offer_is_told_to_cores_and_the_queues_of_a_core_to_satellites() -> None:
    advertiser = make_advertiser(advertisement=BOTH)
    advertiser.peer_up("C2", Role.CORE, 0.0)
    advertiser.peer_up("S2", Role.SATELLITE, 0.0)
    assert sent(advertiser) == [("C2", BOTH), ("S2", QUEUES)]

    advertiser = make_advertiser(SATELLITE, advertisement=BOTH)
    advertiser.peer_up("C1", Role.CORE, 0.0)
    advertiser.peer_up("S2", Role.SATELLITE, 0.0)
    assert sent(advertiser) == [("C1", BOTH)]

    advertiser = make_advertiser()
    advertiser.peer_up("C2", Role.CORE, 0.0)
    assert sent(advertiser) == [("C2", EMPTY)]


def test_a_change_is_told_at_once_with_a_higher_number_and_no_change_is_not() -> None:
    advertiser = settled()
    advertiser.advertise(BOTH, 5.0)
    assert advertiser.drain_outgoing() == []
    advertiser.advertise(EMPTY, 5.0)
    ((name, update),) = advertiser.drain_outgoing()
    assert (name, update) == ("C2", AdvertisementUpdate(7, 4, EMPTY))
    assert advertiser.unacknowledged() == ["C2"]


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

    advertiser = make_advertiser(advertisement=QUEUES)
    advertiser.peer_up("S2", Role.SATELLITE, 0.0)
    acknowledge(advertiser)
    advertiser.advertise(BOTH, 1.0)
    advertiser.advertise(QUEUES, 2.0)
    assert advertiser.drain_outgoing() == []
    assert advertiser.unacknowledged() == []


def test_what_is_not_acknowledged_is_sent_again_ever_more_slowly() -> None:
    advertiser = make_advertiser(advertisement=BOTH)
    advertiser.peer_up("C2", Role.CORE, 0.0)
    times = []
    for _ in range(6):
        assert sent(advertiser) == [("C2", BOTH)]
        times.append(advertiser.deadline())
        advertiser.tick(advertiser.deadline() - 0.1)
        assert advertiser.drain_outgoing() == []
        advertiser.tick(advertiser.deadline())
    assert times == [1, 3, 7, 11, 15, 19]


def test_what_is_sent_again_is_the_newest_and_waits_for_the_acknowledgement() -> None:
    advertiser = make_advertiser(advertisement=BOTH)
    advertiser.peer_up("C2", Role.CORE, 0.0)
    ((_, first),) = advertiser.drain_outgoing()
    advertiser.advertise(QUEUES, 0.1)
    advertiser.advertise(EMPTY, 0.2)
    assert advertiser.drain_outgoing() == []
    assert isinstance(first, AdvertisementUpdate)
    advertiser.receive(AdvertisementAck(7, first.number, BOTH.digest()), "C2", 0.3)
    assert sent(advertiser) == [("C2", EMPTY)]
    assert advertiser.deadline() == 1.3

    advertiser = make_advertiser(advertisement=BOTH)
    advertiser.peer_up("C2", Role.CORE, 0.0)
    advertiser.drain_outgoing()
    advertiser.advertise(EMPTY, 0.1)
    advertiser.tick(1.0)
    assert sent(advertiser) == [("C2", EMPTY)]


def test_an_acknowledgement_settles_it_until_a_check_finds_something_else(
    subtests: pytest.Subtests,
) -> None:
    advertiser = settled()
    assert advertiser.unacknowledged() == []
    assert advertiser.deadline() == 30
    advertiser.tick(30.0)
    assert advertiser.drain_outgoing() == [("C2", AdvertisementQuery())]
    assert advertiser.deadline() == 60

    for ack in [
        AdvertisementAck(),
        AdvertisementAck(6, 9, b""),
        AdvertisementAck(7, 1, EMPTY.digest()),
        AdvertisementAck(7, 2, EMPTY.digest()),
    ]:
        with subtests.test(ack=ack):
            advertiser = settled()
            advertiser.tick(30.0)
            advertiser.drain_outgoing()
            advertiser.receive(ack, "C2", 30.1)
            assert sent(advertiser) == [("C2", BOTH)]
            assert advertiser.unacknowledged() == ["C2"]


def test_a_peer_that_is_always_wrong_has_to_wait(subtests: pytest.Subtests) -> None:
    for ack in [AdvertisementAck(), AdvertisementAck(7, 2, b"wrong"), AdvertisementAck(7, 1, b"")]:
        with subtests.test(ack=ack):
            advertiser = make_advertiser(advertisement=BOTH)
            advertiser.peer_up("C2", Role.CORE, 0.0)
            advertiser.drain_outgoing()
            for _ in range(3):
                advertiser.receive(ack, "C2", 0.1)
            assert advertiser.drain_outgoing() == []
            advertiser.tick(1.0)
            assert sent(advertiser) == [("C2", BOTH)]

    for ack in [AdvertisementAck(8, 1, b""), AdvertisementAck(7, 99, b"")]:
        with subtests.test(ack=ack):
            advertiser = settled()
            advertiser.receive(ack, "C2", 1.0)
            (warning,) = advertiser.drain_warnings()
            assert "C2 has an advertisement of another process named C1" in warning
            assert f"of incarnation {ack.incarnation};" in warning
            assert advertiser.drain_outgoing() == []
            assert advertiser.drain_warnings() == []

    for value in [0, -1, float("nan"), float("inf")]:
        with subtests.test(value=value), pytest.raises(ConfigError, match="resend_first_s"):
            RouteAdvertiserConfig(resend_first_s=value)


def test_a_peer_that_comes_again_is_told_again_and_one_that_is_gone_is_forgotten() -> None:
    advertiser = settled()
    advertiser.peer_up("C2", Role.CORE, 5.0)
    assert sent(advertiser) == [("C2", BOTH)]

    advertiser = settled()
    advertiser.peer_down("C2")
    advertiser.peer_down("C2")
    advertiser.receive(AdvertisementAck(), "C2", 1.0)
    advertiser.advertise(EMPTY, 1.0)
    advertiser.tick(100.0)
    assert advertiser.drain_outgoing() == []
    assert advertiser.deadline() == NEVER


def test_a_core_that_stops_tells_its_satellites_and_a_satellite_nobody() -> None:
    advertiser = settled()
    advertiser.peer_up("S2", Role.SATELLITE, 0.0)
    acknowledge(advertiser)
    advertiser.announce_shutdown()
    expected: list[tuple[str, RoutingUpdate]] = [("S2", ShutdownNotice(7))]
    assert advertiser.drain_outgoing() == expected

    advertiser = settled(SATELLITE)
    advertiser.announce_shutdown()
    assert advertiser.drain_outgoing() == []

    advertiser = settled()
    assert repr(advertiser) == "<RouteAdvertiser of C1: #3, 1 peers, 0 unacknowledged>"


def test_a_peer_that_takes_back_what_it_acknowledged_has_to_wait() -> None:
    advertiser = settled()
    now = 100.0
    advertiser.receive(AdvertisementAck(), "C2", now)
    [(_, snapshot)] = advertiser.drain_outgoing()
    assert isinstance(snapshot, AdvertisementUpdate)
    for _ in range(20):
        ack = AdvertisementAck(snapshot.incarnation, snapshot.number, BOTH.digest())
        advertiser.receive(ack, "C2", now)
        assert advertiser.unacknowledged() == []
        advertiser.receive(AdvertisementAck(), "C2", now)
    assert sent(advertiser) == []
    assert advertiser.unacknowledged() == ["C2"]
    advertiser.tick(advertiser.deadline())
    assert sent(advertiser) == [("C2", BOTH)]
