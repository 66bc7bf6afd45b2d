"""What holds for the routing decision, whatever is in the table."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.cells import (
    CellAddress,
    CellPath,
    Decision,
    Domain,
    Envelope,
    Origin,
    Role,
    Route,
    RouteTable,
    RouteType,
    route_message,
)
from postroad.cells.routing import SOURCE_HOPS_MAX

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
tables = st.lists(routes, max_size=14, unique_by=lambda it: (it.destination, it.identity)).map(
    RouteTable
)
paths = st.lists(addresses, min_size=1, max_size=3).map(lambda hops: CellPath(tuple(hops)))
starts = st.lists(addresses, max_size=3)
repeats = st.sampled_from([0, 0, 0, SOURCE_HOPS_MAX - 2, SOURCE_HOPS_MAX])
sources = st.builds(
    lambda hops, count: CellPath((*hops, *[CellAddress.of_domain("C1")] * count)), starts, repeats
)
origins = st.one_of(
    st.builds(Origin, st.none(), st.booleans(), st.booleans()),
    st.builds(Origin.from_peer, st.sampled_from(DOMAINS[1:]), st.sampled_from(Role)),
)
envelopes = st.builds(
    Envelope,
    id=st.binary(min_size=16, max_size=16),
    destination=paths,
    source=sources,
    is_quiet=st.booleans(),
    ttl_ms=st.sampled_from([None, None, 0, 1]),
)
avoided = st.frozensets(st.sampled_from(DOMAINS[1:]), max_size=2)


def decide(
    table: RouteTable, envelope: Envelope, origin: Origin, avoid: frozenset[str] = frozenset()
) -> Decision:
    return route_message(
        envelope,
        origin,
        table=table,
        cells=CELLS,
        domain=Domain(OWN, Role.SATELLITE, "east"),
        avoid=avoid,
    )


@given(tables, envelopes, origins, avoided)
def test_every_decision_is_sound(
    table: RouteTable, envelope: Envelope, origin: Origin, avoid: frozenset[str]
) -> None:
    decision = decide(table, envelope, origin, avoid)
    receivers = [it.cell for it in decision.deliveries]
    copies = [(it.gateway, it.envelope.destination.current) for it in decision.forwards]
    assert len(set(receivers)) == len(receivers)
    assert len(set(copies)) == len(copies)
    assert {*receivers, *(it.gateway for it in decision.forwards)} <= CELLS
    assert decision.steps
    assert decision.explain()
    if decision.is_answered:
        assert decision.failure is not None
        assert envelope.is_answerable
    has_topics = any(route.type is RouteType.TOPIC for route in table)
    if not has_topics:
        fates = len(receivers) + len(copies) + (decision.failure is not None)
        assert fates == 1


@given(tables, envelopes, origins)
def test_what_is_passed_on_is_the_same_message(
    table: RouteTable, envelope: Envelope, origin: Origin
) -> None:
    decision = decide(table, envelope, origin)
    for delivery in decision.deliveries:
        path = delivery.envelope.destination
        assert path.hops[path.position - 1] == CellAddress(delivery.cell, OWN)
        assert delivery.envelope.source == envelope.source
    for forward in decision.forwards:
        assert forward.envelope.source == envelope.source.appended(CellAddress.of_domain(OWN))
        assert len(forward.envelope.source) <= SOURCE_HOPS_MAX + 1
    made = [it.envelope for it in decision.deliveries] + [it.envelope for it in decision.forwards]
    for copy in made:
        assert copy.id == envelope.id
        assert copy.destination.position >= envelope.destination.position
        assert len(copy.destination) == len(envelope.destination)


@given(tables, envelopes, origins)
def test_the_same_question_has_the_same_answer(
    table: RouteTable, envelope: Envelope, origin: Origin
) -> None:
    assert decide(table, envelope, origin) == decide(table, envelope, origin)


@given(tables, envelopes)
def test_a_plain_name_from_a_core_does_not_leave(table: RouteTable, envelope: Envelope) -> None:
    plain = envelope.heading(CellPath.of("n"))
    aliases = [route for route in table if route.type in (RouteType.ALIAS, RouteType.EXACT)]
    table = table.deleted(*aliases)
    assert decide(table, plain, Origin.from_peer("C1", Role.CORE)).forwards == ()


@given(tables, envelopes, avoided)
def test_what_is_avoided_is_avoided(
    table: RouteTable, envelope: Envelope, avoid: frozenset[str]
) -> None:
    decision = decide(table, envelope, Origin(), avoid)
    assert not avoid & {it.choice for it in decision.forwards if it.choice is not None}


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
