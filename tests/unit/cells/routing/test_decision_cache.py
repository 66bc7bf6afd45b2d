"""The switch: what it remembers, what it does not, and that neither changes a decision."""

from typing import Any

import pytest

from postroad.cells import CellPath, NoRouteError, Role, Route, RouteTable
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.routing.decision import (
    LOCAL_ORIGIN,
    REMOTE_ONLY_ORIGIN,
    MessageOrigin,
    RoutingDecision,
)
from postroad.cells.routing.decision_cache import RoutingDecisionCache
from postroad.cells.routing.router import SOURCE_HOPS_MAX, route_message
from tests.support.cells.networks import make_envelope
from tests.unit.cells.routing.decisions import (
    CELLS,
    DEFAULTS,
    FROM_CORE,
    FROM_SATELLITE,
    LINKS,
    S1,
    at,
    cells_of,
    failure_of,
    gateways_of,
)

NOBODY: frozenset[str] = frozenset()


class Pair:
    """A switch and the function, which must agree."""

    def __init__(self, *routes: Route, draining: frozenset[str] = NOBODY, **options: int) -> None:
        self.decision_cache = RoutingDecisionCache(S1, **options)
        self.update(*routes, draining=draining)

    def update(self, *routes: Route, draining: frozenset[str] = NOBODY) -> None:
        self.table = RouteTable([*LINKS, *routes])
        self.draining = draining
        self.decision_cache.update(self.table, CELLS, draining)

    def decide(
        self,
        path: str | Envelope,
        origin: MessageOrigin = LOCAL_ORIGIN,
        avoid: frozenset[str] = NOBODY,
    ) -> RoutingDecision:
        envelope = make_envelope(path, "p@S1") if isinstance(path, str) else path
        decision = self.decision_cache.decide(envelope, origin, avoid)
        expected = route_message(
            envelope,
            origin,
            table=self.table,
            cells=CELLS,
            domain=S1,
            draining=self.draining,
            avoid=avoid,
        )
        assert decision.deliveries == expected.deliveries
        assert decision.forwards == expected.forwards
        assert decision.failure == expected.failure
        assert decision.should_reply == expected.should_reply
        return decision

    def remembers(self, path: str | Envelope, origin: MessageOrigin = LOCAL_ORIGIN) -> bool:
        """Whether the second of two messages needs no decision of its own."""
        self.decide(path, origin)
        return self.decide(path, origin).steps_log == ()


QUEUE = [Route.to_queue("Q", at(address)) for address in ("a@S1", "b@S1", "*@C1", "*@S2")]
TOPIC = [Route.to_topic("T", at(address)) for address in ("a@S1", "b@S1", "*@C1", "*@S2")]


def test_decision_cache_usual_messages_are_cached(subtests: pytest.Subtests) -> None:
    for path in ["a", "a@S1", "x@S2", "*@S2:x", "q", "T", "x", "x@S9"]:
        with subtests.test(path=path):
            pair = Pair(*TOPIC, *DEFAULTS, Route.to_queue("q", at("*@S2")))
            assert pair.remembers(path)

    for path in ["*@S1:a", "alias", "x", "*@S1"]:
        with subtests.test(path=path):
            pair = Pair(Route.alias(at("alias"), at("a")))
            assert not pair.remembers(path)
            assert pair.decision_cache.size == 0


def test_decision_cache_queue_with_unusable_routes_is_cached() -> None:
    pair = Pair(*QUEUE)
    for _ in range(100):
        pair.decide("Q")
    decisions = [pair.decide("Q") for _ in range(100)]
    assert all(decision.steps_log == () for decision in decisions)
    takers = {(*cells_of(decision), *gateways_of(decision)) for decision in decisions}
    assert takers == {("a",), ("b",), ("to-C1",), ("to-S2",)}

    gone = [Route.to_queue("Q", at(address)) for address in ("gone@S1", "*@S9", "*@S8")]
    for routes in ([*gone, *QUEUE], [*gone, DEFAULTS[0]]):
        pair = Pair(*routes)
        for _ in range(100):
            pair.decide("Q")
        assert all(pair.decide("Q").steps_log == () for _ in range(100))


def test_decision_cache_routes_of_local_zone_are_cached() -> None:
    near = [Route.to_queue("Q", at(address), "east") for address in ("*@C1", "*@C2", "*@S9")]
    pair = Pair(*near, *QUEUE[:2])
    for _ in range(100):
        pair.decide("Q")
    decisions = [pair.decide("Q") for _ in range(100)]
    assert {decision.forwards[0].gateway for decision in decisions} == {"to-C1", "to-C2"}
    assert all(decision.steps_log == () for decision in decisions)


def test_decision_cache_cells_of_domain_share_plan() -> None:
    pair = Pair()
    for number in range(50):
        assert gateways_of(pair.decide(f"x{number}@S2")) == ["to-S2"]
    assert pair.decision_cache.size == 1

    for exact in (
        Route.to_address(at("x@S2"), at("to-C1@S1")),
        Route.alias(at("x@S2"), at("y@C1")),
    ):
        pair = Pair(exact)
        assert pair.remembers("y@S2")
        assert gateways_of(pair.decide("x@S2")) == ["to-C1"]
        assert gateways_of(pair.decide("y@S2")) == ["to-S2"]


def test_decision_cache_visited_domains_change_decision() -> None:
    pair = Pair(*TOPIC, *QUEUE)
    for _ in range(2):
        for origin in (
            LOCAL_ORIGIN,
            REMOTE_ONLY_ORIGIN,
            FROM_CORE,
            FROM_SATELLITE,
            MessageOrigin(allow_fan_out=False),
        ):
            pair.decide("a", origin)
            pair.decide("T", origin)
        assert failure_of(pair.decide("a", REMOTE_ONLY_ORIGIN))[0] == NoRouteError.code
        assert gateways_of(pair.decide("T", FROM_CORE)) == []
        assert gateways_of(pair.decide("T", FROM_SATELLITE)) == ["to-C1"]

    pair = Pair(*QUEUE[2:], *DEFAULTS)
    for _ in range(40):
        assert gateways_of(pair.decide(make_envelope("Q", "p@S2:*@S2"), FROM_SATELLITE)) == [
            "to-C1"
        ]
        pair.decide("Q")
        pair.decide(make_envelope("x", "p@S9:*@S9:*@C1"))
        pair.decide("x")
        pair.decide(make_envelope("Q", "p@S9:*@C1:*@S2"))
    pair = Pair(Route.to_domain("S9", at("*@S2")), Route.default(at("*@C1")))
    for _ in range(2):
        assert gateways_of(pair.decide("x@S9")) == ["to-S2"]
        assert gateways_of(pair.decide("x@S9", FROM_SATELLITE)) == ["to-C1"]


def test_decision_cache_expired_or_distant_messages_fail() -> None:
    pair = Pair()
    assert pair.remembers("x@S2")
    far = make_envelope("x@S2", ":".join(["p@S1", *["*@C1"] * SOURCE_HOPS_MAX]))
    assert "hops" in failure_of(pair.decide(far))[1]
    assert "expired" in failure_of(pair.decide(make_envelope("x@S2", "p@S1", ttl_ms=0)))[1]
    late = make_envelope("x@S2", "p@S1", ttl_ms=0, kind=MessageKind.REPLY, in_reply_to=bytes(16))
    assert pair.remembers(late)
    walked = make_envelope("x@S2", "p@S1").with_destination(CellPath.of("x@S2").advanced())
    assert failure_of(pair.decide(walked))[0] == NoRouteError.code


def test_decision_cache_avoided_targets_are_skipped() -> None:
    pair = Pair(*QUEUE, *DEFAULTS)
    for _ in range(40):
        pair.decide("Q")
        pair.decide("Q", LOCAL_ORIGIN, frozenset({"C1", "a@S1"}))
        pair.decide("x")
        assert gateways_of(pair.decide("x", LOCAL_ORIGIN, frozenset({"C1"}))) == ["to-C2"]
        assert gateways_of(pair.decide("x", LOCAL_ORIGIN, frozenset({"C2"}))) == ["to-C1"]


def test_decision_cache_update_clears_plans() -> None:
    pair = Pair(*DEFAULTS)
    assert cells_of(pair.decide("a")) == ["a"]
    assert gateways_of(pair.decide("x@S2")) == ["to-S2"]
    pair.update(Route.to_address(at("x@S2"), at("to-C1@S1")), DEFAULTS[0], draining=frozenset("a"))
    assert pair.decision_cache.size == 0
    assert gateways_of(pair.decide("a")) == ["to-C1"]
    assert gateways_of(pair.decide("x@S2")) == ["to-C1"]

    decision = RoutingDecisionCache(S1).decide(make_envelope("a@S1", "p@S1"))
    assert failure_of(decision)[0] == NoRouteError.code

    cells = set(CELLS)
    decision_cache = RoutingDecisionCache(S1)
    decision_cache.update(RouteTable(LINKS), cells)
    cells.add("new")
    assert failure_of(decision_cache.decide(make_envelope("new", "p@S1")))[0] == NoRouteError.code


def test_decision_cache_change_keeps_unaffected_plans(subtests: pytest.Subtests) -> None:
    untouched = {"a", "b@S1", "x@S2", "q", "T", "y"}
    changes: list[tuple[str, dict[str, Any], set[str]]] = [
        ("a queue", {"added": [Route.to_queue("q", at("*@C1"))]}, {"q"}),
        ("a topic", {"added": [Route.to_topic("T", at("*@C2"))]}, {"T"}),
        ("an alias", {"added": [Route.alias(at("z@S2"), at("a"))]}, {"x@S2"}),
        ("an exact route", {"added": [Route.to_address(at("y"), at("to-C1@S1"))]}, {"y"}),
        ("defaults", {"deleted": DEFAULTS[:1]}, {"y", "T"}),
        ("another name", {"added": [Route.to_queue("other", at("*@C1"))]}, set()),
        ("another domain", {"added": [Route.to_domain("S9", at("to-C1@S1"))]}, set()),
    ]
    for title, change, forgotten in changes:
        with subtests.test(change=title):
            pair = Pair(*TOPIC, *DEFAULTS, Route.to_queue("q", at("*@S2")))
            for path in untouched:
                assert pair.remembers(path)
            pair.table = pair.table.changed(**change)
            pair.decision_cache.update(pair.table, CELLS)
            assert {path for path in untouched if pair.decide(path).steps_log} == forgotten


def test_decision_cache_forgets_what_it_indexed() -> None:
    pair = Pair(*QUEUE, *TOPIC, *DEFAULTS)
    for path in ("a", "Q", "T", "x@S2", "y"):
        for _ in range(20):
            pair.decide(path)
    assert len(pair.decision_cache.cache) > 5
    pair.decision_cache.update(RouteTable(), ())
    assert pair.decision_cache.size == len(pair.decision_cache.cache) == 0


def test_decision_cache_size_is_bounded() -> None:
    pair = Pair(*QUEUE, *TOPIC, *DEFAULTS, plans_max=10)
    highest = 0
    for number in range(60):
        for path in (f"x{number}", "Q", "T", f"y@D{number}", "a"):
            pair.decide(path, MessageOrigin.from_peer(f"P{number % 3}", Role.SATELLITE))
            highest = max(highest, pair.decision_cache.size)
    assert 6 < highest <= 10
