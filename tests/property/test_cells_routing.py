"""What holds for the routing decision and for the switch, whatever is in the table."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, TypeVar

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.cells import CellAddress, CellPath, Role, Route, RouteTable, RouteType
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.routing.decision import MessageOrigin, RoutingDecision
from postroad.cells.routing.decision_cache import RoutingDecisionCache
from postroad.cells.routing.router import SOURCE_HOPS_MAX, route_message
from tests.support.tiers import by_tier

NAMES = ("a", "b", "n", "m")


DOMAINS = ("S1", "S2", "C1", "C2")


OWN = "S1"


CELLS = {"a", "b", "g", "h"}


zones = st.sampled_from([None, "east", "west"])


targets = st.one_of(
    st.builds(CellAddress, st.sampled_from(sorted(CELLS | {"gone"})), st.just(OWN)),
    st.builds(CellAddress.of_domain, st.sampled_from(DOMAINS)),
)


addresses = st.one_of(
    st.builds(CellAddress, st.sampled_from(NAMES), st.sampled_from(("local", *DOMAINS))),
    st.builds(CellAddress.of_domain, st.sampled_from(DOMAINS)),
)


written = addresses.filter(lambda address: not address.is_domain)


routes = st.one_of(
    st.builds(Route.to_topic, st.sampled_from(NAMES), targets, zones),
    st.builds(Route.to_queue, st.sampled_from(NAMES), targets, zones),
    st.builds(Route.to_domain, st.sampled_from(DOMAINS), targets),
    st.builds(Route.to_address, written, targets),
    st.builds(Route.alias, written, addresses),
    st.builds(Route.default, targets, zones),
)


tables = st.lists(
    routes, max_size=14, unique_by=lambda route: (route.destination, route.identity)
).map(RouteTable)


paths = st.lists(addresses, min_size=1, max_size=3).map(lambda hops: CellPath(tuple(hops)))


starts = st.lists(addresses, max_size=3)


repeats = st.sampled_from([0, 0, 0, SOURCE_HOPS_MAX - 2, SOURCE_HOPS_MAX])


sources = st.builds(
    lambda hops, count: CellPath((*hops, *[CellAddress.of_domain("C1")] * count)), starts, repeats
)


origins = st.one_of(
    st.builds(MessageOrigin, st.none(), st.booleans(), st.booleans()),
    st.builds(MessageOrigin.from_peer, st.sampled_from(DOMAINS[1:]), st.sampled_from(Role)),
)


envelopes = st.builds(
    Envelope,
    id=st.binary(min_size=16, max_size=16),
    destination=paths,
    source=sources,
    suppress_errors=st.booleans(),
    ttl_ms=st.sampled_from([None, None, 0, 1]),
)


avoided = st.frozensets(st.sampled_from(DOMAINS[1:]), max_size=2)


def decide(
    table: RouteTable,
    envelope: Envelope,
    origin: MessageOrigin,
    avoid: frozenset[str] = frozenset(),
) -> RoutingDecision:
    return route_message(
        envelope,
        origin,
        table=table,
        cells=CELLS,
        domain=DomainInfo(OWN, Role.SATELLITE, "east"),
        avoid=avoid,
    )


@given(tables, envelopes, origins, avoided)
def test_every_decision_is_sound(
    table: RouteTable, envelope: Envelope, origin: MessageOrigin, avoid: frozenset[str]
) -> None:
    decision = decide(table, envelope, origin, avoid)
    receivers = [delivery.cell for delivery in decision.deliveries]
    copies = [
        (forward.gateway, forward.envelope.destination.current) for forward in decision.forwards
    ]
    assert len(set(receivers)) == len(receivers)
    assert len(set(copies)) == len(copies)
    assert {*receivers, *(forward.gateway for forward in decision.forwards)} <= CELLS
    assert decision.steps
    assert decision.describe()
    if decision.should_reply:
        assert decision.failure is not None
        assert envelope.can_reply
    has_topics = any(route.type is RouteType.TOPIC for route in table)
    if not has_topics:
        fates = len(receivers) + len(copies) + (decision.failure is not None)
        assert fates == 1


@given(tables, envelopes, origins)
def test_routed_copies_are_the_same_message(
    table: RouteTable, envelope: Envelope, origin: MessageOrigin
) -> None:
    decision = decide(table, envelope, origin)
    for delivery in decision.deliveries:
        path = delivery.envelope.destination
        assert path.hops[path.position - 1] == CellAddress(delivery.cell, OWN)
        assert delivery.envelope.source == envelope.source
    for forward in decision.forwards:
        # What came from elsewhere and has another destination now is sent by the domain itself.
        was_readdressed = forward.envelope.destination != envelope.destination
        is_own = was_readdressed and origin.peer is not None
        sender = envelope.source.appended(CellAddress("System", OWN)) if is_own else envelope.source
        assert forward.envelope.source == sender.appended(CellAddress.of_domain(OWN))
        assert len(forward.envelope.source) <= SOURCE_HOPS_MAX + 1 + is_own
    copies = [delivery.envelope for delivery in decision.deliveries] + [
        forward.envelope for forward in decision.forwards
    ]
    for copy in copies:
        assert copy.id == envelope.id
        assert copy.destination.position >= envelope.destination.position
        assert len(copy.destination) == len(envelope.destination)


@given(tables, envelopes, origins)
def test_the_same_question_has_the_same_answer(
    table: RouteTable, envelope: Envelope, origin: MessageOrigin
) -> None:
    assert decide(table, envelope, origin) == decide(table, envelope, origin)


@given(tables, envelopes)
def test_a_plain_name_from_a_core_does_not_leave(table: RouteTable, envelope: Envelope) -> None:
    plain = envelope.with_destination(CellPath.of("n"))
    aliases = [route for route in table if route.type in (RouteType.ALIAS, RouteType.EXACT)]
    table = table.deleted(*aliases)
    assert decide(table, plain, MessageOrigin.from_peer("C1", Role.CORE)).forwards == ()


@given(tables, envelopes, avoided)
def test_avoided_targets_are_not_used(
    table: RouteTable, envelope: Envelope, avoid: frozenset[str]
) -> None:
    decision = decide(table, envelope, MessageOrigin(), avoid)
    assert not avoid & {
        forward.selected_target
        for forward in decision.forwards
        if forward.selected_target is not None
    }


@given(st.lists(routes, max_size=14), st.data())
def test_a_table_is_the_set_of_its_routes(chosen: list[Route], data: st.DataObject) -> None:
    model: dict[tuple[object, ...], Route] = {}
    table = RouteTable()
    for route in chosen:
        key = (route.destination, route.identity)
        assert (route in table) == (key in model)
        before = list(table)
        if data.draw(st.booleans()):
            changed = table.changed(added=[route], is_strict=False)
            model.setdefault(key, route)
        else:
            changed = table.changed(deleted=[route], is_strict=False)
            model.pop(key, None)
        assert list(table) == before
        table = changed
        assert sorted(map(str, table)) == sorted(map(str, model.values()))
        assert len(table) == len(model)


OWN_DOMAIN = DomainInfo(OWN, Role.SATELLITE, "east")


NOBODY: frozenset[str] = frozenset()


IDS = 8


T = TypeVar("T")


class Around(NamedTuple):
    table: RouteTable
    cells: frozenset[str]
    draining: frozenset[str]


class Question(NamedTuple):
    envelope: Envelope
    origin: MessageOrigin
    avoid: frozenset[str] = NOBODY


class Kinds(NamedTuple):
    """Messages that differ in few ways, so that some are alike and plans serve again."""

    destinations: list[CellPath]
    sources: list[CellPath]
    origins: list[MessageOrigin]

    def questions(self) -> Iterator[Question]:
        """One of each kind, with ids that make different choices."""
        kinds = product(self.destinations, self.sources, self.origins, range(IDS))
        for destination, source, origin, number in kinds:
            envelope = Envelope(
                id=number.to_bytes(16), destination=destination, source=source, ttl_ms=5
            )
            yield Question(envelope, origin)


def few(strategy: st.SearchStrategy[T], count: int = 2) -> st.SearchStrategy[list[T]]:
    return st.lists(strategy, min_size=1, max_size=count)


LINKS = [
    Route.to_domain(name, CellAddress(cell, OWN))
    for name, cell in (("S2", "g"), ("C1", "h"), ("C2", "g"))
]


def with_links(table: RouteTable) -> RouteTable:
    return table.changed(added=LINKS, is_strict=False)


# About one name: its queues and topics, and what comes after them.
routes_of_n = st.one_of(
    st.builds(Route.to_queue, st.just("n"), targets, zones),
    st.builds(Route.to_queue, st.just("n"), targets, zones),
    st.builds(Route.to_topic, st.just("n"), targets, zones),
    st.builds(Route.default, targets, zones),
)


tables_of_n = st.lists(
    routes_of_n, max_size=9, unique_by=lambda route: (route.destination, route.identity)
).map(RouteTable)


some_cells = st.frozensets(st.sampled_from(sorted(CELLS)))


arounds = st.builds(
    Around,
    st.one_of(tables, tables.map(with_links), tables_of_n.map(with_links)),
    st.one_of(st.just(frozenset(CELLS)), some_cells),
    st.one_of(st.just(NOBODY), some_cells),
)


usual_paths = st.one_of(
    st.just(CellPath.of("n")),
    st.lists(addresses, min_size=1, max_size=2).map(lambda hops: CellPath(tuple(hops))),
)


all_origins = st.one_of(origins, origins, st.just(MessageOrigin(allow_fan_out=False)))


kinds = st.builds(Kinds, few(usual_paths, 3), few(sources), few(all_origins))


def outcome_of(decision: RoutingDecision) -> tuple[object, ...]:
    return decision.deliveries, decision.forwards, decision.failure, decision.should_reply


def check(decision_cache: RoutingDecisionCache, around: Around, questions: list[Question]) -> None:
    for question in questions:
        decision = route_message(
            question.envelope,
            question.origin,
            table=around.table,
            cells=around.cells,
            domain=OWN_DOMAIN,
            draining=around.draining,
            avoid=question.avoid,
        )
        assert outcome_of(decision_cache.decide(*question)) == outcome_of(decision)


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(kinds, few(arounds), st.sampled_from([1, 5, 8_192]))
def test_decision_cache_matches_route_message(
    kinds: Kinds, arounds: list[Around], plans_max: int
) -> None:
    decision_cache = RoutingDecisionCache(OWN_DOMAIN, plans_max=plans_max)
    for around in arounds:
        decision_cache.update(*around)
        # The second time it remembers what it learnt the first time.
        check(decision_cache, around, [*kinds.questions(), *kinds.questions()])


changes = st.one_of(
    st.tuples(st.just("add"), st.one_of(routes, routes_of_n)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.sampled_from(["cells", "draining"]), st.sampled_from(sorted(CELLS))),
)


def changed(around: Around, kind: str, what: Any) -> Around:
    """One change, as a domain makes it."""
    table, cells, draining = around
    if kind == "add":
        return around._replace(table=table.changed(added=[what], is_strict=False))
    if kind == "delete":
        listed = list(table)
        gone = listed[what % len(listed) :][:1] if listed else []
        return around._replace(table=table.changed(deleted=gone))
    if kind == "cells":
        return around._replace(cells=cells ^ {what})
    return around._replace(draining=draining ^ {what})


@settings(max_examples=by_tier(test=100, nightly=2_000, quick=20))
@given(kinds, arounds, st.lists(changes, min_size=1, max_size=6))
def test_change_updates_every_affected_decision(
    kinds: Kinds, around: Around, steps: list[tuple[str, Any]]
) -> None:
    decision_cache = RoutingDecisionCache(OWN_DOMAIN)
    decision_cache.update(*around)
    for kind, what in steps:
        check(decision_cache, around, list(kinds.questions()))
        around = changed(around, kind, what)
        decision_cache.update(*around)
    check(decision_cache, around, list(kinds.questions()))


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(kinds, arounds, avoided, st.data())
def test_decision_cache_matches_for_unusual_messages(
    kinds: Kinds, around: Around, avoid: frozenset[str], data: st.DataObject
) -> None:
    decision_cache = RoutingDecisionCache(OWN_DOMAIN)
    decision_cache.update(*around)
    usual = list(kinds.questions())
    check(decision_cache, around, usual)
    path = data.draw(st.sampled_from(kinds.destinations))
    for envelope, origin, _ in usual[:IDS]:
        reply = {"kind": MessageKind.REPLY, "in_reply_to": bytes(16)}
        changes: list[dict[str, Any]] = [
            {"ttl_ms": 0},
            {"ttl_ms": 0, **reply},
            reply,
            {"suppress_errors": True},
            {"destination": path.advanced()},
        ]
        others = [msgspec.structs.replace(envelope, **change) for change in changes]
        check(decision_cache, around, [Question(envelope, origin) for envelope in others])
        check(decision_cache, around, [Question(envelope, origin, avoid)])
