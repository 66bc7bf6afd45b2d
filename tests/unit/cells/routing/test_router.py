"""The routing decision in one domain: what comes before what, and which route is taken."""

from collections import Counter

import pytest

from postroad.cells import HopLimitExceededError, MessageExpiredError, NoRouteError, Role, Route
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.envelope import MessageKind
from postroad.cells.routing.decision import MessageOrigin
from postroad.cells.routing.rendezvous import rendezvous_rank
from postroad.cells.routing.router import SOURCE_HOPS_MAX, STEPS_MAX
from tests.support.cells.networks import Network, make_envelope
from tests.unit.cells.routing.decisions import (
    DEFAULTS,
    FROM_CORE,
    FROM_SATELLITE,
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
    assert delivery.envelope.destination.is_complete
    assert str(delivery.envelope.destination.last) == "a@S1"
    assert delivery.route_name is None


def test_hops_after_a_cell_are_left_to_it() -> None:
    (delivery,) = decide("a:b@S2").deliveries
    assert delivery.envelope.destination.describe() == "[a@S1:>b@S2]"

    decision = decide("x@S1", Route.default(at("*@C1")), Route.alias(at("x@S1"), at("a")))
    assert failure_of(decision) == (NoRouteError.code, "no cell 'x' in domain S1")
    assert decision.forwards == ()

    for path in ["*@S1", "*@S1:*@S1"]:
        assert failure_of(decide(path))[1] == "the path ends at domain S1, not at a cell", path

    envelope = make_envelope("a", "p@S1")
    walked = envelope.with_destination(envelope.destination.advanced())
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
    assert failure_of(decide("x@S9", *routes))[0] == NoRouteError.code
    assert gateways_of(decide("x@S9", *routes, Route.to_domain("S9", at("to-C1")))) == ["to-C1"]

    (forward,) = decide("*@S1:x@S2").forwards
    assert str(forward.envelope.source) == "p@S1:*@S1"
    assert forward.envelope.destination.describe() == "[*@S1:>x@S2]"


def test_an_alias_may_be_a_queue_a_topic_or_a_domain() -> None:
    (forward,) = decide("x:y", Route.alias(at("x"), at("z@S2"))).forwards
    assert forward.envelope.destination.describe() == "[>z@S2:y@local]"

    alias = Route.alias(at("x"), at("n"))
    queue = decide("x", alias, Route.to_queue("n", at("a@S1")))
    assert (cells_of(queue), queue.deliveries[0].route_name) == (["a"], "n")
    topic = decide("x", alias, Route.to_topic("n", at("a@S1")), Route.to_topic("n", at("b@S1")))
    assert cells_of(topic) == ["a", "b"]
    assert gateways_of(decide("x:y", Route.alias(at("x"), at("*@S2")))) == ["to-S2"]

    routes = [Route.alias(at("x"), at("Q")), Route.to_queue("Q", at("*@S2"))]
    assert gateways_of(decide("x", *routes, origin=FROM_CORE)) == ["to-S2"]
    assert gateways_of(decide("Q", *routes, origin=FROM_CORE)) == []


def test_aliases_in_a_circle_end_and_chains_have_a_limit() -> None:
    decision = decide("A", Route.alias(at("A"), at("B")), Route.alias(at("B"), at("A")))
    assert failure_of(decision)[0] == HopLimitExceededError.code
    assert decision.steps.count("alias A@local -> B@local: alias") == STEPS_MAX / 2

    assert cells_of(decide("n0", *chain_of_aliases(STEPS_MAX - 1))) == ["a"]
    assert failure_of(decide("n0", *chain_of_aliases(STEPS_MAX)))[0] == HopLimitExceededError.code


def chain_of_aliases(length: int) -> list[Route]:
    names = [f"n{number}" for number in range(length)]
    targets = [*names[1:], "a"]
    pairs = zip(names, targets, strict=True)
    return [Route.alias(at(name), at(target)) for name, target in pairs]


def test_failures_are_answered_if_somebody_can_be_told() -> None:
    assert decide("x").should_reply
    orphan = make_envelope("x")
    from_domain = make_envelope("x", "*@C1")
    reply = make_envelope("x", "p@S2", kind=MessageKind.REPLY, in_reply_to=bytes(16))
    for envelope in (orphan, from_domain, reply):
        decision = decide(envelope)
        assert failure_of(decision)[0] == NoRouteError.code
        assert not decision.should_reply

    assert not decide(make_envelope("x", "p@S1", suppress_errors=True)).should_reply
    circle = [Route.alias(at("A"), at("B")), Route.alias(at("B"), at("A"))]
    assert decide(make_envelope("A", "p@S1", suppress_errors=True), *circle).should_reply

    decision = decide(make_envelope("a", "p@S2", ttl_ms=0))
    assert failure_of(decision)[0] == MessageExpiredError.code
    assert (decision.deliveries, decision.should_reply) == ((), True)
    late = make_envelope("a", "p@S2", ttl_ms=0, kind=MessageKind.REPLY, in_reply_to=bytes(16))
    assert cells_of(decide(late)) == ["a"]


def test_every_step_and_a_failure_are_explained() -> None:
    first, second = rendezvous_rank(b"T@local", ["C1", "C2"])
    decision = decide(
        "*@S1:T",
        Route.to_topic("T", at("a@S1")),
        Route.to_topic("T", at("gone@S1")),
        Route.to_queue("T", at("*@S9")),
        *DEFAULTS,
        avoid=frozenset({first}),
    )
    assert decision.describe().splitlines() == [
        "*@S1 is this domain: on to the next hop",
        "topic T@* -> a@S1: a copy",
        "topic T@* -> gone@S1: that cell is gone",
        "queue T@* -> *@S9: no gateway",
        f"default *@* -> *@{second}: through to-{second}",
        "=> deliver to a for T",
        f"=> forward through to-{second} towards {second}",
    ]

    assert decide("x{y}").describe().splitlines() == [
        "no route for x{y}@local at S1",
        "=> fail: no route for x{y}@local at S1",
    ]


# Topics.


def test_each_topic_route_gets_a_copy_and_the_default_one_more() -> None:
    decision = decide(
        "T", *(Route.to_topic("T", at(address)) for address in ("a@S1", "b", "*@S2", "*@C1"))
    )
    assert cells_of(decision) == ["a", "b"]
    assert gateways_of(decision) == ["to-S2", "to-C1"]
    assert decision.failure is None
    assert {delivery.route_name for delivery in decision.deliveries} == {"T"}
    assert {str(forward.envelope.destination.current) for forward in decision.forwards} == {
        "T@local"
    }
    assert {delivery.envelope.id for delivery in decision.deliveries} == {
        forward.envelope.id for forward in decision.forwards
    }

    decision = decide("T", Route.to_topic("T", at("a@S1")), Route.default(at("*@C1")))
    assert (cells_of(decision), gateways_of(decision)) == (["a"], ["to-C1"])

    decision = decide("T", Route.to_topic("T", at("gone@S1")))
    assert (decision.deliveries, decision.failure) == ((), None)
    assert decision.describe().endswith("=> nothing to do")

    topics = [Route.to_topic("T", at(address)) for address in ("*@S9", "a@S1")]
    decision = decide("T", *topics, Route.default(at("*@C1")))
    assert failure_of(decision) == (NoRouteError.code, "topic T@* -> *@S9: no gateway from S1")
    assert (cells_of(decision), gateways_of(decision)) == (["a"], ["to-C1"])


def test_a_publication_has_one_copy_for_each_and_stays_if_it_comes_from_a_core() -> None:
    decision = decide(
        "T",
        Route.to_topic("T", at("a@S1")),
        Route.to_topic("T", at("a@local")),
        Route.to_queue("T", at("a@S1")),
    )
    assert cells_of(decision) == ["a"]
    assert decision.steps.count("a has its copy already") == 2
    decision = decide("T", Route.to_topic("T", at("*@C1")), Route.default(at("*@C1")))
    assert gateways_of(decision) == ["to-C1"]
    assert "to-C1 has its copy already" in decision.steps

    topics = [Route.to_topic("T", at(address)) for address in ("a@S1", "*@S2")]
    decision = decide("T", *topics, Route.default(at("*@C2")), origin=FROM_CORE)
    assert (cells_of(decision), gateways_of(decision)) == (["a"], [])
    assert decision.failure is None
    decision = decide("T", topics[1], origin=FROM_CORE)
    assert (decision.forwards, decision.failure) == ((), None)


def test_the_domain_a_publication_comes_from_is_passed_over() -> None:
    topics = [Route.to_topic("T", at(address)) for address in ("*@S2", "*@C1")]
    envelope = make_envelope("T", "p@S2:*@S2")
    decision = decide(envelope, *topics, origin=FROM_SATELLITE)
    assert gateways_of(decision) == ["to-C1"]
    decision = decide(envelope, topics[0], origin=FROM_SATELLITE)
    assert (gateways_of(decision), decision.failure) == ([], None)
    decision = decide(make_envelope("T", "p@S9"), *topics, origin=FROM_SATELLITE)
    assert gateways_of(decision) == ["to-C1"]

    envelope = make_envelope("q@C2:T", "p@S2:*@S2:q@C2:*@C2")
    envelope = envelope.with_destination(envelope.destination.advanced())
    decision = decide(
        envelope,
        Route.to_topic("T", at("*@S2")),
        origin=MessageOrigin.from_peer("C2", Role.SATELLITE),
    )
    assert gateways_of(decision) == ["to-S2"]

    topic = Route.to_topic("T", at("*@S2"))
    envelope = make_envelope("*@S1:T", "p@S2:*@S2")
    assert gateways_of(decide(envelope, topic, origin=FROM_SATELLITE)) == ["to-S2"]


def test_a_queue_message_goes_to_one_of_all_consumers() -> None:
    routes = [Route.to_queue("Q", at(address)) for address in ("a@S1", "b@S1", "*@C1", "*@S2")]
    counts: Counter[str] = Counter()
    for _ in range(400):
        decision = decide("Q", *routes)
        (taker,) = [*cells_of(decision), *gateways_of(decision)]
        counts[taker] += 1
    assert set(counts) == {"a", "b", "to-C1", "to-S2"}
    assert all(60 < count < 150 for count in counts.values())
    envelope = make_envelope("Q", "p@S1")
    assert decide(envelope, *routes) == decide(envelope, *reversed(routes))


def test_a_queue_prefers_the_own_zone_and_stays_if_it_comes_from_a_core() -> None:
    routes = [Route.to_queue("Q", at("*@C1"), "west"), Route.to_queue("Q", at("*@C2"), "east")]
    assert all(gateways_of(decide("Q", *routes)) == ["to-C2"] for _ in range(20))
    assert gateways_of(decide("Q", *routes, avoid=frozenset({"C2"}))) == ["to-C1"]
    homeless = DomainInfo("S1", Role.SATELLITE)
    takers = {gateways_of(decide("Q", *routes, domain=homeless))[0] for _ in range(50)}
    assert takers == {"to-C1", "to-C2"}

    routes = [Route.to_queue("Q", at(address)) for address in ("*@S2", "*@C2", "a@S1")]
    decisions = [decide("Q", *routes, origin=FROM_CORE) for _ in range(20)]
    assert all(cells_of(decision) == ["a"] for decision in decisions)
    decision = decide("Q", *routes[:2], Route.default(at("*@C2")), origin=FROM_CORE)
    assert failure_of(decision) == (NoRouteError.code, "no route for Q@local at S1")
    assert gateways_of(decide("x@S2", origin=FROM_CORE)) == ["to-S2"]


def test_a_queue_passes_over_consumers_that_cannot_be_reached() -> None:
    routes = [Route.to_queue("Q", at(address)) for address in ("gone@S1", "*@S9", "*@S2")]
    assert all(gateways_of(decide("Q", *routes)) == ["to-S2"] for _ in range(20))

    routes = [Route.to_queue("Q", at("*@S9")), Route.default(at("*@C1"))]
    assert gateways_of(decide("Q", *routes)) == ["to-C1"]

    routes = [Route.to_queue("Q", at(address)) for address in ("*@S2", "*@C1")]
    envelopes = [make_envelope("Q", "p@S2:*@S2") for _ in range(20)]
    decisions = [decide(envelope, *routes, origin=FROM_SATELLITE) for envelope in envelopes]
    assert all(gateways_of(decision) == ["to-C1"] for decision in decisions)


# Cells that are draining.

DRAINING = frozenset({"a"})


def test_a_draining_cell_is_reached_by_its_full_address_alone() -> None:
    assert cells_of(decide("a@S1", draining=DRAINING)) == ["a"]
    assert cells_of(decide("*@S1:a@S1", draining=DRAINING)) == ["a"]
    assert cells_of(decide("x", Route.alias(at("x"), at("a@S1")), draining=DRAINING)) == ["a"]
    assert failure_of(decide("a", draining=DRAINING)) == (
        NoRouteError.code,
        "no route for a@local at S1",
    )
    assert gateways_of(decide("a", Route.default(at("*@C1")), draining=DRAINING)) == ["to-C1"]
    alias = Route.alias(at("x"), at("a"))
    assert failure_of(decide("x", alias, draining=DRAINING))[0] == NoRouteError.code
    exact = Route.to_address(at("x@S9"), at("a@S1"))
    assert gateways_of(decide("x@S9", exact, draining=DRAINING)) == []
    assert gateways_of(decide("x@S9", exact, DEFAULTS[0], draining=DRAINING)) == ["to-C1"]


def test_a_draining_consumer_or_subscriber_is_passed_over() -> None:
    routes = [Route.to_queue("Q", at(address)) for address in ("a@S1", "b@S1")]
    assert all(cells_of(decide("Q", *routes, draining=DRAINING)) == ["b"] for _ in range(20))
    decision = decide("Q", routes[0], Route.default(at("*@C1")), draining=DRAINING)
    assert decision.steps[0] == "queue Q@* -> a@S1: that cell is draining"
    assert gateways_of(decision) == ["to-C1"]

    routes = [Route.to_topic("T", at(address)) for address in ("a@S1", "a", "b@S1")]
    decision = decide("T", *routes, draining=DRAINING)
    assert (cells_of(decision), decision.failure) == (["b"], None)
    assert decision.steps[0] == "topic T@* -> a@S1: that cell is draining"


def test_a_destination_always_has_the_same_default() -> None:
    for number in range(50):
        name = f"cell-{number}"
        best = rendezvous_rank(f"{name}@local".encode(), ["C1", "C2"])[0]
        assert gateways_of(decide(name, *DEFAULTS)) == [f"to-{best}"]

    assert gateways_of(decide("x", Route.default(at("to-C1@S1")))) == ["to-C1"]

    envelope = make_envelope("x@S9", "p@S7:*@S7:*@C1")
    assert gateways_of(decide(envelope, *DEFAULTS, origin=FROM_CORE)) == ["to-C2"]
    assert failure_of(decide(envelope, DEFAULTS[0], origin=FROM_CORE))[0] == NoRouteError.code


def test_the_next_default_is_taken_if_the_first_is_avoided_or_not_connected() -> None:
    first, second = rendezvous_rank(b"x@local", ["C1", "C2"])
    decision = decide("x", *DEFAULTS, avoid=frozenset({first}))
    assert gateways_of(decision) == [f"to-{second}"]
    assert decision.forwards[0].selected_target == second
    decision = decide("x", Route.default(at("*@C9")), DEFAULTS[0])
    assert gateways_of(decision) == ["to-C1"]
    decision = decide("x", *DEFAULTS, avoid=frozenset({"C1", "C2"}))
    assert failure_of(decision)[0] == NoRouteError.code

    zones = {"C1": "east", "C2": "east", "S2": "west"}
    routes = [Route.default(at(f"*@{name}"), zone) for name, zone in zones.items()]
    taken = Counter(gateways_of(decide(f"cell-{n}", *routes))[0] for n in range(100))
    assert set(taken) == {"to-C1", "to-C2"}


def two_defaulting_domains() -> Network:
    network = Network()
    for name in ("A", "B"):
        network.add(name, Role.SATELLITE)
    network.link("A", "B")
    network.nodes["A"].add(Route.default(at("to-B@A")))
    network.nodes["B"].add(Route.default(at("to-A@B")))
    network.start("p@A")
    return network


def test_message_makes_at_most_thirty_hops() -> None:
    journey = two_defaulting_domains().send("p@A", "x@Nowhere")
    assert len(journey.crossings) == SOURCE_HOPS_MAX
    assert [failure.code for failure in journey.failures] == [HopLimitExceededError.code]
    assert journey.told == ["p@A"]
