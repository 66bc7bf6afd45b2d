"""The receiver of snapshots: what becomes a route, what is old, and what is withdrawn."""

from __future__ import annotations

import pytest

from postroad.cells import (
    CellAddress,
    Check,
    Domain,
    Have,
    Learner,
    LearnerConfig,
    Leaving,
    Offer,
    Role,
    Route,
    RouteChanges,
    Snapshot,
)
from postroad.cells.learning import NEVER
from postroad.core.errors import ConfigError

C1, C2 = Domain("C1", Role.CORE, "east"), Domain("C2", Role.CORE, "west")
S1, S2 = Domain("S1"), Domain("S2", zone="west")
CONFIG = LearnerConfig(default_delay_s=5)

BOTH = Offer.of(["q"], ["t"], "west")


def make_learner(domain: Domain, *peers: Domain) -> Learner:
    learner = Learner(domain, config=CONFIG)
    for peer in peers:
        learner.peer_up(peer, 0.0)
    return learner


def texts(changes: RouteChanges) -> list[str]:
    return [f"- {it}" for it in changes.deleted] + [f"+ {it}" for it in changes.added]


def tell(learner: Learner, name: str, number: int, offer: Offer, incarnation: int = 1) -> Have:
    have = learner.receive(Snapshot(incarnation, number, offer), name, 0.0)
    assert have is not None
    return have


# What becomes a route.


@pytest.mark.parametrize(
    ("own", "peer", "routes"),
    [
        (C1, C2, ["+ queue q@* -> *@C2 zone west", "+ topic t@* -> *@C2 zone west"]),
        (C1, S2, ["+ queue q@* -> *@S2 zone west", "+ topic t@* -> *@S2 zone west"]),
        (S1, C2, ["+ default *@* -> *@C2 zone west", "+ queue q@* -> *@C2 zone west"]),
        (S1, S2, []),
    ],
    ids=["core of core", "core of satellite", "satellite of core", "satellite of satellite"],
)
def test_who_learns_what(own: Domain, peer: Domain, routes: list[str]) -> None:
    learner = make_learner(own, peer)
    tell(learner, peer.name, 1, BOTH)
    assert texts(learner.take_changes()) == routes
    assert not learner.take_changes()


def test_the_answer_is_what_is_known() -> None:
    learner = make_learner(C1, C2)
    assert learner.receive(Check(), "C2", 0.0) == Have()
    have = tell(learner, "C2", 3, BOTH, incarnation=7)
    assert have == Have(7, 3, BOTH.digest())
    assert learner.receive(Check(), "C2", 0.0) == have
    assert learner.have("C2") == have
    assert learner.have("C9") == Have()
    assert learner.offers() == {"C2": BOTH}


def test_what_is_no_longer_offered_is_withdrawn() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, BOTH)
    learner.take_changes()
    tell(learner, "C2", 2, Offer.of(["r"], ["t"], "west"))
    assert texts(learner.take_changes()) == [
        "- queue q@* -> *@C2 zone west",
        "+ queue r@* -> *@C2 zone west",
    ]


def test_another_zone_replaces_the_routes() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, Offer.of(["q"], [], "west"))
    learner.take_changes()
    tell(learner, "C2", 2, Offer.of(["q"], [], None))
    assert texts(learner.take_changes()) == [
        "- queue q@* -> *@C2 zone west",
        "+ queue q@* -> *@C2",
    ]


def test_what_comes_and_goes_between_two_looks_is_no_change() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, BOTH)
    learner.peer_down("C2", 0.0)
    assert not learner.take_changes()


# What is old.


def test_an_older_snapshot_is_ignored_and_the_newer_one_told() -> None:
    learner = make_learner(C1, C2)
    newest = tell(learner, "C2", 5, BOTH)
    assert tell(learner, "C2", 4, Offer()) == newest
    assert learner.offers() == {"C2": BOTH}


def test_a_new_incarnation_replaces_everything_whatever_its_number() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 5, BOTH, incarnation=1)
    have = tell(learner, "C2", 1, Offer.of(["r"]), incarnation=2)
    assert have.incarnation == 2
    assert tell(learner, "C2", 9, BOTH, incarnation=1) == have
    assert learner.offers()["C2"].queues == ("r",)


def test_the_same_number_with_another_content_is_taken() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 5, BOTH)
    assert tell(learner, "C2", 5, Offer()).digest == Offer().digest()


def test_nobody_is_heard_without_a_tunnel() -> None:
    learner = make_learner(C1)
    assert learner.receive(Snapshot(1, 1, BOTH), "C2", 0.0) is None
    assert not learner.take_changes()


def test_a_peer_that_is_gone_takes_its_routes_along() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 1, BOTH)
    learner.take_changes()
    learner.peer_down("C2", 0.0)
    learner.peer_down("C2", 0.0)
    assert len(learner.take_changes().deleted) == 2
    assert learner.offers() == {}


def test_a_tunnel_that_replaces_another_keeps_the_routes_until_the_peer_speaks() -> None:
    learner = make_learner(C1, C2)
    tell(learner, "C2", 5, BOTH, incarnation=9)
    learner.take_changes()
    learner.peer_up(C2, 1.0)
    assert not learner.take_changes()
    assert learner.have("C2") == Have()
    tell(learner, "C2", 1, Offer(), incarnation=8)
    assert len(learner.take_changes().deleted) == 2


# Default routes.


def defaults(learner: Learner) -> list[str]:
    return texts(learner.take_changes())


def test_the_first_core_is_a_default_at_once_and_the_others_later() -> None:
    learner = make_learner(S1, C1, C2)
    assert defaults(learner) == ["+ default *@* -> *@C1 zone east"]
    assert learner.deadline() == 5
    learner.tick(4.9)
    assert defaults(learner) == []
    learner.tick(5.0)
    assert defaults(learner) == ["+ default *@* -> *@C2 zone west"]
    assert learner.deadline() == NEVER


def test_a_core_has_no_default() -> None:
    learner = make_learner(C1, C2, S1)
    assert defaults(learner) == []
    assert learner.deadline() == NEVER


def test_nobody_waits_once_the_only_default_is_gone() -> None:
    learner = make_learner(S1, C1, C2)
    defaults(learner)
    learner.peer_down("C1", 1.0)
    assert defaults(learner) == [
        "- default *@* -> *@C1 zone east",
        "+ default *@* -> *@C2 zone west",
    ]


def test_a_core_that_leaves_is_no_default_any_more() -> None:
    learner = make_learner(S1, C1, C2)
    tell(learner, "C1", 1, Offer(), incarnation=3)
    defaults(learner)
    assert learner.receive(Leaving(3), "C1", 1.0) == learner.have("C1")
    assert defaults(learner) == [
        "- default *@* -> *@C1 zone east",
        "+ default *@* -> *@C2 zone west",
    ]
    learner.tick(100.0)
    assert defaults(learner) == []


def test_an_old_goodbye_is_ignored() -> None:
    learner = make_learner(S1, C1)
    tell(learner, "C1", 1, Offer(), incarnation=3)
    defaults(learner)
    learner.receive(Leaving(2), "C1", 1.0)
    assert defaults(learner) == []


def test_a_tunnel_that_replaces_another_keeps_the_default() -> None:
    learner = make_learner(S1, C1)
    defaults(learner)
    learner.peer_up(C1, 1.0)
    assert defaults(learner) == []
    learner.peer_up(Domain("C1", Role.SATELLITE), 2.0)
    assert defaults(learner) == ["- default *@* -> *@C1 zone east"]


def test_a_learner_says_whom_it_knows() -> None:
    assert repr(make_learner(S1, C1, C2)) == "<Learner of S1: 2 peers, 1 defaults>"


def test_the_delay_must_be_a_time() -> None:
    with pytest.raises(ConfigError, match="default_delay_s=-1"):
        LearnerConfig(default_delay_s=-1)


def test_changes_are_true_if_there_are_any() -> None:
    assert RouteChanges(added=(Route.default(CellAddress.of_domain("C1")),))
    assert not RouteChanges()


# Less than before.


@pytest.mark.parametrize(
    ("offer", "is_less"),
    [
        (BOTH, False),
        (Offer.of(["q", "r"], ["t", "u"]), False),
        (Offer.of([], ["t"]), True),
        (Offer.of(["q"]), True),
        (Offer.of(["r", "s"], ["t"]), True),
        (Offer(), True),
    ],
    ids=["the same", "more", "no queue", "no topic", "another queue", "nothing"],
)
def test_a_snapshot_that_withdraws_something_is_known_beforehand(
    offer: Offer, is_less: bool
) -> None:
    learner = make_learner(C1, S2)
    assert not learner.would_withdraw(Snapshot(1, 1, BOTH), "S2")
    tell(learner, "S2", 1, BOTH)
    assert learner.would_withdraw(Snapshot(1, 2, offer), "S2") is is_less
    assert learner.offers() == {"S2": BOTH}


def test_other_news_and_strangers_withdraw_nothing() -> None:
    learner = make_learner(C1, S2)
    tell(learner, "S2", 1, BOTH)
    assert not learner.would_withdraw(Check(), "S2")
    assert not learner.would_withdraw(Leaving(1), "S2")
    assert not learner.would_withdraw(Snapshot(1, 2, Offer()), "S9")
