"""A switch decides as `route_message` does, whatever it remembers."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, TypeVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.cells import (
    CellAddress,
    CellPath,
    Decision,
    Domain,
    Envelope,
    Kind,
    Origin,
    Role,
    Route,
    RouteTable,
    route_message,
)
from postroad.cells.switch import Switch
from tests.property.test_cells_routing import (
    CELLS,
    OWN,
    addresses,
    avoided,
    origins,
    sources,
    tables,
    targets,
    zones,
)

DOMAIN = Domain(OWN, Role.SATELLITE, "east")
NOBODY: frozenset[str] = frozenset()
IDS = 8

T = TypeVar("T")


class Around(NamedTuple):
    """What a switch is updated with."""

    table: RouteTable
    cells: frozenset[str]
    hidden: frozenset[str]


class Question(NamedTuple):
    """What a switch is asked."""

    envelope: Envelope
    origin: Origin
    avoid: frozenset[str] = NOBODY


class Kinds(NamedTuple):
    """Messages that differ in few ways, so that some are alike and plans serve again."""

    destinations: list[CellPath]
    sources: list[CellPath]
    origins: list[Origin]

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
    routes_of_n, max_size=9, unique_by=lambda it: (it.destination, it.identity)
).map(RouteTable)

some_cells = st.frozensets(st.sampled_from(sorted(CELLS)))
arounds = st.builds(
    Around,
    st.one_of(tables, tables.map(with_links), tables_of_n.map(with_links)),
    st.one_of(st.just(frozenset(CELLS)), some_cells),
    st.one_of(st.just(NOBODY), some_cells),
)
paths = st.one_of(
    st.just(CellPath.of("n")),
    st.lists(addresses, min_size=1, max_size=2).map(lambda hops: CellPath(tuple(hops))),
)
all_origins = st.one_of(origins, origins, st.just(Origin(may_fan_out=False)))
kinds = st.builds(Kinds, few(paths, 3), few(sources), few(all_origins))


def outcome_of(decision: Decision) -> tuple[object, ...]:
    return decision.deliveries, decision.forwards, decision.failure, decision.is_answered


def check(switch: Switch, around: Around, asked: list[Question]) -> None:
    for question in asked:
        decision = route_message(
            question.envelope,
            question.origin,
            table=around.table,
            cells=around.cells,
            domain=DOMAIN,
            hidden=around.hidden,
            avoid=question.avoid,
        )
        assert outcome_of(switch.decide(*question)) == outcome_of(decision)


@given(kinds, few(arounds), st.sampled_from([1, 5, 8_192]))
def test_a_switch_decides_as_the_function_does(
    kinds: Kinds, arounds: list[Around], remembered_max: int
) -> None:
    switch = Switch(DOMAIN, remembered_max=remembered_max)
    for around in arounds:
        switch.update(*around)
        # The second time it remembers what it learnt the first time.
        check(switch, around, [*kinds.questions(), *kinds.questions()])


@given(kinds, arounds, avoided, st.data())
def test_so_it_does_with_whatever_is_unusual(
    kinds: Kinds, around: Around, avoid: frozenset[str], data: st.DataObject
) -> None:
    switch = Switch(DOMAIN)
    switch.update(*around)
    usual = list(kinds.questions())
    check(switch, around, usual)
    path = data.draw(st.sampled_from(kinds.destinations))
    for envelope, origin, _ in usual[:IDS]:
        reply = {"kind": Kind.REPLY, "answers": bytes(16)}
        changes: list[dict[str, Any]] = [
            {"ttl_ms": 0},
            {"ttl_ms": 0, **reply},
            reply,
            {"is_quiet": True},
            {"destination": path.advanced()},
        ]
        others = [msgspec.structs.replace(envelope, **change) for change in changes]
        check(switch, around, [Question(it, origin) for it in others])
        check(switch, around, [Question(envelope, origin, avoid)])
