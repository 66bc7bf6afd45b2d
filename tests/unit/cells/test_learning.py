"""The receiver of snapshots: what becomes a route, what is old, and what is withdrawn."""

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
    RouteChanges,
    RouteLearner,
    RouteLearnerConfig,
    ShutdownNotice,
)
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
    return [f"- {it}" for it in changes.deleted] + [f"+ {it}" for it in changes.added]


def tell(
    learner: RouteLearner, name: str, number: int, offer: RouteAdvertisement, incarnation: int = 1
) -> AdvertisementAck:
    have = learner.receive(AdvertisementUpdate(incarnation, number, offer), name, 0.0)
    assert have is not None
    return have


def test_a_core_knows_what_it_was_told_and_who_learns_what(subtests: pytest.Subtests) -> None:
    for own, peer, routes in [
        (C1, C2, ["+ queue q@* -> *@C2 zone west", "+ topic t@* -> *@C2 zone west"]),
        (C1, S2, ["+ queue q@* -> *@S2 zone west", "+ topic t@* -> *@S2 zone west"]),
        (S1, C2, ["+ default *@* -> *@C2 zone west", "+ queue q@* -> *@C2 zone west"]),
        (S1, S2, []),
    ]:
        with subtests.test(own=own):
            learner = make_learner(own, peer)
            tell(learner, peer.name, 1, BOTH)
            assert texts(learner.drain_changes()) == routes
            assert not learner.drain_changes()

    learner = make_learner(C1, C2)
    assert learner.receive(AdvertisementQuery(), "C2", 0.0) == AdvertisementAck()
    have = tell(learner, "C2", 3, BOTH, incarnation=7)
    assert have == AdvertisementAck(7, 3, BOTH.digest())
    assert learner.receive(AdvertisementQuery(), "C2", 0.0) == have
    assert learner.ack_for("C2") == have
    assert learner.ack_for("C9") == AdvertisementAck()
    assert learner.advertisements() == {"C2": BOTH}


def test_what_is_no_longer_offered_or_in_another_zone_is_withdrawn() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, BOTH)
    learner.drain_changes()
    tell(learner, "C2", 2, RouteAdvertisement.of(["r"], ["t"], "west"))
    assert texts(learner.drain_changes()) == [
        "- queue q@* -> *@C2 zone west",
        "+ queue r@* -> *@C2 zone west",
    ]

    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, RouteAdvertisement.of(["q"], [], "west"))
    learner.drain_changes()
    tell(learner, "C2", 2, RouteAdvertisement.of(["q"], [], None))
    assert texts(learner.drain_changes()) == [
        "- queue q@* -> *@C2 zone west",
        "+ queue q@* -> *@C2",
    ]

    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, BOTH)
    learner.peer_down("C2", 0.0)
    assert not learner.drain_changes()


def test_an_older_snapshot_is_ignored_and_a_new_incarnation_replaces_everything() -> None:
    learner = make_learner(C1, C2)
    newest = tell(learner, "C2", 5, BOTH)
    assert tell(learner, "C2", 4, RouteAdvertisement()) == newest
    assert learner.advertisements() == {"C2": BOTH}
    tell(learner, "C2", 5, BOTH)
    assert tell(learner, "C2", 5, RouteAdvertisement()).digest == RouteAdvertisement().digest()

    learner = make_learner(C1, C2)
    tell(learner, "C2", 5, BOTH, incarnation=1)
    have = tell(learner, "C2", 1, RouteAdvertisement.of(["r"]), incarnation=2)
    assert have.incarnation == 2
    assert tell(learner, "C2", 9, BOTH, incarnation=1) == have
    assert learner.advertisements()["C2"].queues == ("r",)

    learner = make_learner(C1)
    assert learner.receive(AdvertisementUpdate(1, 1, BOTH), "C2", 0.0) is None
    assert not learner.drain_changes()


def test_a_peer_that_is_gone_takes_its_routes_along() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, BOTH)
    learner.drain_changes()
    learner.peer_down("C2", 0.0)
    learner.peer_down("C2", 0.0)
    assert len(learner.drain_changes().deleted) == 2
    assert learner.advertisements() == {}

    learner = make_learner(C1, C2)
    tell(learner, "C2", 5, BOTH, incarnation=9)
    learner.drain_changes()
    learner.peer_up(C2, 1.0)
    assert not learner.drain_changes()
    assert learner.ack_for("C2") == AdvertisementAck()
    tell(learner, "C2", 1, RouteAdvertisement(), incarnation=8)
    assert len(learner.drain_changes().deleted) == 2


def defaults(learner: RouteLearner) -> list[str]:
    return texts(learner.drain_changes())


def test_defaults_of_a_satellite_come_one_after_the_other() -> None:
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


def test_a_core_that_is_gone_or_leaves_is_no_default_any_more() -> None:
    learner = make_learner(S1, C1, C2)
    defaults(learner)
    learner.peer_down("C1", 1.0)
    assert defaults(learner) == [
        "- default *@* -> *@C1 zone east",
        "+ default *@* -> *@C2 zone west",
    ]

    learner = make_learner(S1, C1, C2)
    tell(learner, "C1", 1, RouteAdvertisement(), incarnation=3)
    defaults(learner)
    assert learner.receive(ShutdownNotice(3), "C1", 1.0) == learner.ack_for("C1")
    assert defaults(learner) == [
        "- default *@* -> *@C1 zone east",
        "+ default *@* -> *@C2 zone west",
    ]
    learner.tick(100.0)
    assert defaults(learner) == []

    learner = make_learner(S1, C1)
    tell(learner, "C1", 1, RouteAdvertisement(), incarnation=3)
    defaults(learner)
    learner.receive(ShutdownNotice(2), "C1", 1.0)
    assert defaults(learner) == []


def test_a_learner_says_whom_it_knows() -> None:
    assert repr(make_learner(S1, C1, C2)) == "<Learner of S1: 2 peers, 1 defaults>"
    with pytest.raises(ConfigError, match="default_delay_s=-1"):
        RouteLearnerConfig(default_delay_s=-1)
    assert RouteChanges(added=(Route.default(CellAddress.of_domain("C1")),))
    assert not RouteChanges()


def test_a_snapshot_that_withdraws_something_is_known_beforehand(subtests: pytest.Subtests) -> None:
    for offer, is_less in [
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
            tell(learner, "S2", 1, BOTH)
            assert learner.would_withdraw(AdvertisementUpdate(1, 2, offer), "S2") is is_less
            assert learner.advertisements() == {"S2": BOTH}

    learner = make_learner(C1, S2)
    tell(learner, "S2", 1, BOTH)
    assert not learner.would_withdraw(AdvertisementQuery(), "S2")
    assert not learner.would_withdraw(ShutdownNotice(1), "S2")
    assert not learner.would_withdraw(AdvertisementUpdate(1, 2, RouteAdvertisement()), "S9")


def test_many_changes_are_given_out_in_slices_and_peers_take_turns() -> None:
    learner = make_learner(C1, C2, S2)
    learner.drain_changes()
    tell(learner, "C2", 1, RouteAdvertisement.of([f"q{n}" for n in range(10)]))
    tell(learner, "S2", 1, RouteAdvertisement.of(["few"]))
    slices = []
    while learner.has_changes:
        slices.append(learner.drain_changes(4))
        assert learner.is_applied("S2") == (len(slices) > 1)
    assert [len(it.added) for it in slices] == [4, 4, 3]
    assert {it.target.domain for it in slices[0].added} == {"C2"}
    assert {it.target.domain for it in slices[1].added} == {"S2", "C2"}
    assert learner.is_applied("C2")
    added = {it for changes in slices for it in changes.added}
    assert len(added) == 11


def test_what_happens_between_slices_is_seen_to() -> None:
    learner = make_learner(C1, C2)
    table: set[Route] = set()

    def take(count: int) -> None:
        changes = learner.drain_changes(count)
        assert table.issuperset(changes.deleted)
        assert table.isdisjoint(changes.added)
        table.difference_update(changes.deleted)
        table.update(changes.added)

    tell(learner, "C2", 1, RouteAdvertisement.of([f"a{n}" for n in range(10)]))
    take(3)
    tell(learner, "C2", 2, RouteAdvertisement.of([f"b{n}" for n in range(10)]))
    take(5)
    tell(learner, "C2", 3, RouteAdvertisement.of(["a1", "b1"]))
    while learner.has_changes:
        take(2)
    assert {it.cell for it in table} == {"a1", "b1"}
    tell(learner, "C2", 4, RouteAdvertisement.of([f"c{n}" for n in range(10)]))
    take(4)
    learner.peer_down("C2", 0.0)
    assert not learner.is_applied("C2")
    while learner.has_changes:
        take(2)
    assert not table


def test_a_core_that_says_again_and_again_that_it_leaves_changes_nothing() -> None:
    learner = make_learner(S1, C1, C2)
    tell(learner, "C1", 1, RouteAdvertisement.of(["q"]))
    learner.drain_changes()
    learner.receive(ShutdownNotice(1), "C1", 0.0)
    assert learner.drain_changes()
    have = learner.receive(ShutdownNotice(1), "C1", 0.0)
    assert have is not None and have.acknowledges_shutdown
    assert not learner.has_changes
