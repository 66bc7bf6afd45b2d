"""The routing decision in one domain: what comes before what, and where it ends."""

import pytest

from postroad.cells import (
    HopLimit,
    Kind,
    MessageExpired,
    NoRoute,
    Route,
    rank,
)
from postroad.cells.routing import STEPS_MAX
from tests.support.cells.networks import make_envelope
from tests.unit.cells.decisions import (
    DEFAULTS,
    FROM_CORE,
    at,
    cells_of,
    decide,
    failure_of,
    gateways_of,
)

# Precedence.


@pytest.mark.parametrize("path", ["a@S1", "a", "*@S1:a", "*@S1:*@S1:a@S1"])
def test_a_cell_of_this_domain(path: str) -> None:
    decision = decide(path, Route.default(at("*@C1")), Route.alias(at("a"), at("b")))
    assert cells_of(decision) == ["a"]
    assert decision.forwards == ()
    (delivery,) = decision.deliveries
    assert delivery.envelope.destination.was_walked
    assert str(delivery.envelope.destination.last) == "a@S1"
    assert delivery.name is None


def test_hops_after_a_cell_are_left_to_it() -> None:
    (delivery,) = decide("a:b@S2").deliveries
    assert delivery.envelope.destination.describe() == "[a@S1:>b@S2]"

    decision = decide("x@S1", Route.default(at("*@C1")), Route.alias(at("x@S1"), at("a")))
    assert failure_of(decision) == (NoRoute.code, "no cell 'x' in domain S1")
    assert decision.forwards == ()

    for path in ["*@S1", "*@S1:*@S1"]:
        assert failure_of(decide(path))[1] == "the path ends at domain S1, not at a cell", path

    envelope = make_envelope("a", "p@S1")
    walked = envelope.heading(envelope.destination.advanced())
    failure = decide(walked).failure
    assert failure is not None
    assert failure.hop is None


def test_an_exact_route_comes_before_domain_and_queue_routes() -> None:
    exact = Route.to_address(at("x@S2"), at("to-C1@S1"))
    assert gateways_of(decide("x@S2", exact)) == ["to-C1"]
    assert gateways_of(decide("y@S2", exact)) == ["to-S2"]

    exact = Route.to_address(at("Q"), at("to-C1"))
    assert gateways_of(decide("Q", Route.to_queue("Q", at("a@S1")), exact)) == ["to-C1"]

    alias, exact = Route.alias(at("x"), at("a@S1")), Route.to_address(at("x"), at("to-C1"))
    assert cells_of(decide("x", alias, exact)) == ["a"]
    assert gateways_of(decide("x", exact, alias)) == ["to-C1"]

    gone, other = at("gone@S1"), Route.alias(at("x"), at("a"))
    assert cells_of(decide("x", Route.to_address(at("x"), gone), other)) == ["a"]


def test_a_domain_route_comes_before_the_default() -> None:
    assert gateways_of(decide("x@S2", Route.default(at("*@C1")))) == ["to-S2"]
    assert gateways_of(decide("x@S3", Route.default(at("*@C1")))) == ["to-C1"]
    assert gateways_of(decide("*@S2:x", Route.default(at("*@C1")))) == ["to-S2"]

    assert gateways_of(decide("x@S9", Route.to_domain("S9", at("*@S2")))) == ["to-S2"]

    routes = [Route.to_domain("S8", at("*@S9")), Route.to_domain("S9", at("*@S8"))]
    assert failure_of(decide("x@S9", *routes))[0] == NoRoute.code
    assert gateways_of(decide("x@S9", *routes, Route.to_domain("S9", at("to-C1")))) == ["to-C1"]

    (forward,) = decide("*@S1:x@S2").forwards
    assert str(forward.envelope.source) == "p@S1:*@S1"
    assert forward.envelope.destination.describe() == "[*@S1:>x@S2]"


def test_an_alias_may_be_a_queue_a_topic_or_a_domain() -> None:
    (forward,) = decide("x:y", Route.alias(at("x"), at("z@S2"))).forwards
    assert forward.envelope.destination.describe() == "[>z@S2:y@local]"

    alias = Route.alias(at("x"), at("n"))
    queue = decide("x", alias, Route.to_queue("n", at("a@S1")))
    assert (cells_of(queue), queue.deliveries[0].name) == (["a"], "n")
    topic = decide("x", alias, Route.to_topic("n", at("a@S1")), Route.to_topic("n", at("b@S1")))
    assert cells_of(topic) == ["a", "b"]
    assert gateways_of(decide("x:y", Route.alias(at("x"), at("*@S2")))) == ["to-S2"]

    routes = [Route.alias(at("x"), at("Q")), Route.to_queue("Q", at("*@S2"))]
    assert gateways_of(decide("x", *routes, origin=FROM_CORE)) == ["to-S2"]
    assert gateways_of(decide("Q", *routes, origin=FROM_CORE)) == []


def test_aliases_in_a_circle_end_and_chains_have_a_limit() -> None:
    decision = decide("A", Route.alias(at("A"), at("B")), Route.alias(at("B"), at("A")))
    assert failure_of(decision)[0] == HopLimit.code
    assert decision.steps.count("alias A@local -> B@local: another name") == STEPS_MAX / 2

    assert cells_of(decide("n0", *chain_of_aliases(STEPS_MAX - 1))) == ["a"]
    assert failure_of(decide("n0", *chain_of_aliases(STEPS_MAX)))[0] == HopLimit.code


def chain_of_aliases(length: int) -> list[Route]:
    names = [f"n{number}" for number in range(length)]
    targets = [*names[1:], "a"]
    pairs = zip(names, targets, strict=True)
    return [Route.alias(at(name), at(target)) for name, target in pairs]


def test_failures_are_answered_if_somebody_can_be_told() -> None:
    assert decide("x").is_answered
    orphan = make_envelope("x")
    from_domain = make_envelope("x", "*@C1")
    reply = make_envelope("x", "p@S2", kind=Kind.REPLY, answers=bytes(16))
    for envelope in (orphan, from_domain, reply):
        decision = decide(envelope)
        assert failure_of(decision)[0] == NoRoute.code
        assert not decision.is_answered

    assert not decide(make_envelope("x", "p@S1", is_quiet=True)).is_answered
    circle = [Route.alias(at("A"), at("B")), Route.alias(at("B"), at("A"))]
    assert decide(make_envelope("A", "p@S1", is_quiet=True), *circle).is_answered

    decision = decide(make_envelope("a", "p@S2", ttl_ms=0))
    assert failure_of(decision)[0] == MessageExpired.code
    assert (decision.deliveries, decision.is_answered) == ((), True)
    late = make_envelope("a", "p@S2", ttl_ms=0, kind=Kind.REPLY, answers=bytes(16))
    assert cells_of(decide(late)) == ["a"]


def test_every_step_and_a_failure_are_explained() -> None:
    first, second = rank(b"T@local", ["C1", "C2"])
    decision = decide(
        "*@S1:T",
        Route.to_topic("T", at("a@S1")),
        Route.to_topic("T", at("gone@S1")),
        Route.to_queue("T", at("*@S9")),
        *DEFAULTS,
        avoid=frozenset({first}),
    )
    assert decision.explain().splitlines() == [
        "*@S1 is this domain: on to the next hop",
        "topic T@* -> a@S1: a copy",
        "topic T@* -> gone@S1: that cell is gone",
        "queue T@* -> *@S9: no way there",
        f"default *@* -> *@{second}: through to-{second}",
        "=> deliver to a for T",
        f"=> forward through to-{second} towards {second}",
    ]

    assert decide("x{y}").explain().splitlines() == [
        "no route for x{y}@local at S1",
        "=> fail: no route for x{y}@local at S1",
    ]
