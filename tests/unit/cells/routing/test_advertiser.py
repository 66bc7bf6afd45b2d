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
from postroad.cells.routing.advertiser import RouteAdvertiser, build_advertisement
from postroad.core.errors import ConfigError
from postroad.core.timing import NEVER

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
        (name, update.advertisement)
        for name, update in outgoing
        if isinstance(update, AdvertisementUpdate)
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


def test_advertiser_peer_up_sends_all_to_cores_and_queues_to_satellites() -> None:
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


def test_advertiser_changed_routes_sends_higher_number() -> None:
    advertiser = settled()
    advertiser.advertise(BOTH, 5.0)
    assert advertiser.drain_outgoing() == []
    advertiser.advertise(EMPTY, 5.0)
    ((name, update),) = advertiser.drain_outgoing()
    assert (name, update) == ("C2", AdvertisementUpdate(7, 4, EMPTY))
    assert advertiser.unacknowledged() == ["C2"]


def test_build_advertisement_of_table_contains_local_routes() -> None:
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


def test_advertiser_without_ack_resends_with_backoff() -> None:
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


def test_advertiser_resend_contains_newest_advertisement() -> None:
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


def test_advertiser_query_with_other_version_resends(subtests: pytest.Subtests) -> None:
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


def test_advertiser_wrong_ack_waits_for_resend_delay(subtests: pytest.Subtests) -> None:
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


def test_advertiser_peer_reconnected_gets_full_advertisement() -> None:
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


def test_advertiser_shutdown_of_core_notifies_satellites() -> None:
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


def test_advertiser_revoked_ack_waits_for_resend_delay() -> None:
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
