"""The receiver of snapshots: what becomes a route, what is old, and what is withdrawn."""

import pytest

from postroad.cells import CellAddress, Role, Route, RouteLearnerConfig
from postroad.cells.addresses import DomainInfo
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    ShutdownNotice,
)
from postroad.cells.routing.route_learner import RouteChanges, RouteLearner
from postroad.core.errors import ConfigError
from postroad.core.timing import NEVER

C1, C2 = DomainInfo("C1", Role.CORE, "east"), DomainInfo("C2", Role.CORE, "west")
S1, S2 = DomainInfo("S1"), DomainInfo("S2", zone="west")
CONFIG = RouteLearnerConfig(default_delay_s=5)

BOTH = RouteAdvertisement.of(["q"], ["t"], "west")


def make_learner(domain: DomainInfo, *peers: DomainInfo) -> RouteLearner:
    learner = RouteLearner(domain, config=CONFIG)
    for peer in peers:
        learner.peer_up(peer, 0.0)
    return learner


def texts(changes: RouteChanges) -> list[str]:
    return [f"- {route}" for route in changes.deleted] + [f"+ {route}" for route in changes.added]


def advertise(
    learner: RouteLearner,
    name: str,
    number: int,
    advertisement: RouteAdvertisement,
    incarnation: int = 1,
) -> AdvertisementAck:
    ack = learner.receive(AdvertisementUpdate(incarnation, number, advertisement), name, 0.0)
    assert ack is not None
    return ack


def test_route_learner_advertisement_adds_routes_by_role(subtests: pytest.Subtests) -> None:
    for own, peer, routes in [
        (C1, C2, ["+ queue q@* -> *@C2 zone west", "+ topic t@* -> *@C2 zone west"]),
        (C1, S2, ["+ queue q@* -> *@S2 zone west", "+ topic t@* -> *@S2 zone west"]),
        (S1, C2, ["+ default *@* -> *@C2 zone west", "+ queue q@* -> *@C2 zone west"]),
        (S1, S2, []),
    ]:
        with subtests.test(own=own):
            learner = make_learner(own, peer)
            advertise(learner, peer.name, 1, BOTH)
            assert texts(learner.drain_changes()) == routes
            assert not learner.drain_changes()

    learner = make_learner(C1, C2)
    assert learner.receive(AdvertisementQuery(), "C2", 0.0) == AdvertisementAck()
    ack = advertise(learner, "C2", 3, BOTH, incarnation=7)
    assert ack == AdvertisementAck(7, 3, BOTH.digest())
    assert learner.receive(AdvertisementQuery(), "C2", 0.0) == ack
    assert learner.ack_for("C2") == ack
    assert learner.ack_for("C9") == AdvertisementAck()
    assert learner.advertisements() == {"C2": BOTH}


def test_route_learner_changed_advertisement_withdraws_routes() -> None:
    learner = make_learner(C1, C2)
    advertise(learner, "C2", 1, BOTH)
    learner.drain_changes()
    advertise(learner, "C2", 2, RouteAdvertisement.of(["r"], ["t"], "west"))
    assert texts(learner.drain_changes()) == [
        "- queue q@* -> *@C2 zone west",
        "+ queue r@* -> *@C2 zone west",
    ]

    learner = make_learner(C1, C2)
    advertise(learner, "C2", 1, RouteAdvertisement.of(["q"], [], "west"))
    learner.drain_changes()
    advertise(learner, "C2", 2, RouteAdvertisement.of(["q"], [], None))
    assert texts(learner.drain_changes()) == [
        "- queue q@* -> *@C2 zone west",
        "+ queue q@* -> *@C2",
    ]

    learner = make_learner(C1, C2)
    advertise(learner, "C2", 1, BOTH)
    learner.peer_down("C2", 0.0)
    assert not learner.drain_changes()


def test_route_learner_stale_update_is_ignored() -> None:
    learner = make_learner(C1, C2)
    newest = advertise(learner, "C2", 5, BOTH)
    assert advertise(learner, "C2", 4, RouteAdvertisement()) == newest
    assert learner.advertisements() == {"C2": BOTH}
    advertise(learner, "C2", 5, BOTH)
    assert advertise(learner, "C2", 5, RouteAdvertisement()).digest == RouteAdvertisement().digest()

    learner = make_learner(C1, C2)
    advertise(learner, "C2", 5, BOTH, incarnation=1)
    ack = advertise(learner, "C2", 1, RouteAdvertisement.of(["r"]), incarnation=2)
    assert ack.incarnation == 2
    assert advertise(learner, "C2", 9, BOTH, incarnation=1) == ack
    assert learner.advertisements()["C2"].queues == ("r",)

    learner = make_learner(C1)
    assert learner.receive(AdvertisementUpdate(1, 1, BOTH), "C2", 0.0) is None
    assert not learner.drain_changes()


def test_route_learner_peer_down_withdraws_routes() -> None:
    learner = make_learner(C1, C2)
    advertise(learner, "C2", 1, BOTH)
    learner.drain_changes()
    learner.peer_down("C2", 0.0)
    learner.peer_down("C2", 0.0)
    assert len(learner.drain_changes().deleted) == 2
    assert learner.advertisements() == {}

    learner = make_learner(C1, C2)
    advertise(learner, "C2", 5, BOTH, incarnation=9)
    learner.drain_changes()
    learner.peer_up(C2, 1.0)
    assert not learner.drain_changes()
    assert learner.ack_for("C2") == AdvertisementAck()
    advertise(learner, "C2", 1, RouteAdvertisement(), incarnation=8)
    assert len(learner.drain_changes().deleted) == 2


def defaults(learner: RouteLearner) -> list[str]:
    return texts(learner.drain_changes())


def test_route_learner_new_core_becomes_default_after_delay() -> None:
    learner = make_learner(S1, C1, C2)
    assert defaults(learner) == ["+ default *@* -> *@C1 zone east"]
    assert learner.deadline() == 5
    learner.tick(4.9)
    assert defaults(learner) == []
    learner.tick(5.0)
    assert defaults(learner) == ["+ default *@* -> *@C2 zone west"]
    assert learner.deadline() == NEVER

    learner = make_learner(C1, C2, S1)
    assert defaults(learner) == []
    assert learner.deadline() == NEVER
    learner = make_learner(S1, C1)
    defaults(learner)
    learner.peer_up(C1, 1.0)
    assert defaults(learner) == []
    learner.peer_up(DomainInfo("C1", Role.SATELLITE), 2.0)
    assert defaults(learner) == ["- default *@* -> *@C1 zone east"]


def test_route_learner_stopping_core_loses_default_route() -> None:
    learner = make_learner(S1, C1, C2)
    defaults(learner)
    learner.peer_down("C1", 1.0)
    assert defaults(learner) == [
        "- default *@* -> *@C1 zone east",
        "+ default *@* -> *@C2 zone west",
    ]

    learner = make_learner(S1, C1, C2)
    advertise(learner, "C1", 1, RouteAdvertisement(), incarnation=3)
    defaults(learner)
    assert learner.receive(ShutdownNotice(3), "C1", 1.0) == learner.ack_for("C1")
    assert defaults(learner) == [
        "- default *@* -> *@C1 zone east",
        "+ default *@* -> *@C2 zone west",
    ]
    learner.tick(100.0)
    assert defaults(learner) == []

    learner = make_learner(S1, C1)
    advertise(learner, "C1", 1, RouteAdvertisement(), incarnation=3)
    defaults(learner)
    learner.receive(ShutdownNotice(2), "C1", 1.0)
    assert defaults(learner) == []


def test_route_learner_repr_counts_peers_and_defaults() -> None:
    assert repr(make_learner(S1, C1, C2)) == "<RouteLearner of S1: 2 peers, 1 defaults>"
    with pytest.raises(ConfigError, match="default_delay_s=-1"):
        RouteLearnerConfig(default_delay_s=-1)
    assert RouteChanges(added=(Route.default(CellAddress.of_domain("C1")),))
    assert not RouteChanges()


def test_would_withdraw_smaller_advertisement_is_true(subtests: pytest.Subtests) -> None:
    for advertisement, is_less in [
        (BOTH, False),
        (RouteAdvertisement.of(["q", "r"], ["t", "u"]), False),
        (RouteAdvertisement.of([], ["t"]), True),
        (RouteAdvertisement.of(["q"]), True),
        (RouteAdvertisement.of(["r", "s"], ["t"]), True),
        (RouteAdvertisement(), True),
    ]:
        with subtests.test(is_less=is_less):
            learner = make_learner(C1, S2)
            assert not learner.would_withdraw(AdvertisementUpdate(1, 1, BOTH), "S2")
            advertise(learner, "S2", 1, BOTH)
            assert learner.would_withdraw(AdvertisementUpdate(1, 2, advertisement), "S2") is is_less
            assert learner.advertisements() == {"S2": BOTH}

    learner = make_learner(C1, S2)
    advertise(learner, "S2", 1, BOTH)
    assert not learner.would_withdraw(AdvertisementQuery(), "S2")
    assert not learner.would_withdraw(ShutdownNotice(1), "S2")
    assert not learner.would_withdraw(AdvertisementUpdate(1, 2, RouteAdvertisement()), "S9")


def test_drain_changes_with_limit_alternates_peers() -> None:
    learner = make_learner(C1, C2, S2)
    learner.drain_changes()
    advertise(learner, "C2", 1, RouteAdvertisement.of([f"q{n}" for n in range(10)]))
    advertise(learner, "S2", 1, RouteAdvertisement.of(["few"]))
    slices = []
    while learner.has_changes:
        slices.append(learner.drain_changes(4))
        assert learner.is_applied("S2") == (len(slices) > 1)
    assert [len(changes.added) for changes in slices] == [4, 4, 3]
    assert {route.target.domain for route in slices[0].added} == {"C2"}
    assert {route.target.domain for route in slices[1].added} == {"S2", "C2"}
    assert learner.is_applied("C2")
    added = {route for changes in slices for route in changes.added}
    assert len(added) == 11


def test_drain_changes_update_between_slices_is_applied() -> None:
    learner = make_learner(C1, C2)
    table: set[Route] = set()

    def take(count: int) -> None:
        changes = learner.drain_changes(count)
        assert table.issuperset(changes.deleted)
        assert table.isdisjoint(changes.added)
        table.difference_update(changes.deleted)
        table.update(changes.added)

    advertise(learner, "C2", 1, RouteAdvertisement.of([f"a{n}" for n in range(10)]))
    take(3)
    advertise(learner, "C2", 2, RouteAdvertisement.of([f"b{n}" for n in range(10)]))
    take(5)
    advertise(learner, "C2", 3, RouteAdvertisement.of(["a1", "b1"]))
    while learner.has_changes:
        take(2)
    assert {route.cell for route in table} == {"a1", "b1"}
    advertise(learner, "C2", 4, RouteAdvertisement.of([f"c{n}" for n in range(10)]))
    take(4)
    learner.peer_down("C2", 0.0)
    assert not learner.is_applied("C2")
    while learner.has_changes:
        take(2)
    assert not table


def test_route_learner_repeated_shutdown_notice_changes_nothing() -> None:
    learner = make_learner(S1, C1, C2)
    advertise(learner, "C1", 1, RouteAdvertisement.of(["q"]))
    learner.drain_changes()
    learner.receive(ShutdownNotice(1), "C1", 0.0)
    assert learner.drain_changes()
    ack = learner.receive(ShutdownNotice(1), "C1", 0.0)
    assert ack is not None and ack.acknowledges_shutdown
    assert not learner.has_changes
