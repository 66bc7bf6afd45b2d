"""Routes and tables of them: what is refused, what is found, and how it is listed."""

import pytest

from postroad.cells import (
    CellAddress,
    CellNotFoundError,
    DuplicateRouteError,
    Role,
    Route,
    RouteNotFoundError,
    RouteRejectedError,
    RouteTable,
    RouteType,
)
from postroad.cells.addresses import DomainInfo
from postroad.cells.routing.route_table import check_route_target, filter_routes
from postroad.core.errors import ConfigError

A, B = CellAddress("a", "S1"), CellAddress("b", "S1")
S2, C1 = CellAddress.of_domain("S2"), CellAddress.of_domain("C1")


def test_a_route_is_read() -> None:
    for type, destination, route in [
        (None, "", Route.default(A)),
        (None, "*@*", Route.default(A)),
        (None, "*@S2", Route.to_domain("S2", A)),
        (None, "Q", Route.to_queue("Q", A)),
        (None, "Q@*", Route.to_queue("Q", A)),
        (None, "x@S2", Route.to_address(CellAddress("x", "S2"), A)),
        (RouteType.EXACT, "x", Route.to_address(CellAddress("x"), A)),
        (RouteType.ALIAS, "x", Route.alias(CellAddress("x"), A)),
        (RouteType.ALIAS, "x@S2", Route.alias(CellAddress("x", "S2"), A)),
        (RouteType.TOPIC, "T", Route.to_topic("T", A)),
        (RouteType.DOMAIN, "S2", Route.to_domain("S2", A)),
        (RouteType.DOMAIN, "*@S2", Route.to_domain("S2", A)),
        (RouteType.DEFAULT, "", Route.default(A)),
    ]:
        assert Route.parse(type, destination, "a@S1") == route, destination


def test_a_bad_route_is_refused(subtests: pytest.Subtests) -> None:
    for type, destination in [
        (RouteType.QUEUE, "Q@S2"),
        (RouteType.TOPIC, "T@local"),
        (RouteType.QUEUE, ""),
        (RouteType.TOPIC, "*"),
        (RouteType.EXACT, "*@S2"),
        (RouteType.DOMAIN, "x@S2"),
        (RouteType.DOMAIN, ""),
        (RouteType.DOMAIN, "local"),
        (RouteType.DEFAULT, "x"),
        (RouteType.DEFAULT, "*@S2"),
        (None, "a:b"),
        (None, "a@b@c"),
        (None, "*@local"),
    ]:
        with subtests.test(destination=destination), pytest.raises(ConfigError):
            Route.parse(type, destination, "a@S1")

    for type, cell, domain in [
        (RouteType.QUEUE, "Q", "S2"),
        (RouteType.QUEUE, "*", "*"),
        (RouteType.DOMAIN, "*", "*"),
        (RouteType.DOMAIN, "x", "S2"),
        (RouteType.DEFAULT, "*", "S2"),
    ]:
        refusal = pytest.raises(ConfigError, match=f"in a route of type {type.value}")
        with subtests.test(cell=cell), refusal:
            Route(type, cell, domain, A)

    with pytest.raises(ConfigError, match="zone"):
        Route.default(C1, "a b")


def test_routes_and_domains_describe_themselves() -> None:
    assert str(Route.to_queue("Q", S2, "east")) == "queue Q@* -> *@S2 zone east"
    assert str(Route.default(C1)) == "default *@* -> *@C1"

    assert DomainInfo("S1", Role.CORE, "east").address == CellAddress.parse("*@S1")
    with pytest.raises(ConfigError, match="reserved"):
        DomainInfo("local")
    with pytest.raises(ConfigError, match="zone"):
        DomainInfo("S1", zone="")


def test_a_change_makes_another_table_of_the_routes_by_type() -> None:
    empty = RouteTable()
    one = empty.added(Route.to_queue("Q", A))
    two = one.added(Route.to_queue("Q", B))
    back = two.deleted(Route.to_queue("Q", A))
    assert [len(table) for table in (empty, one, two, back)] == [0, 1, 2, 1]
    assert [list(table.queues("Q")) for table in (one, back)] == [
        [Route.to_queue("Q", A)],
        [Route.to_queue("Q", B)],
    ]
    assert back.deleted(Route.to_queue("Q", B)) == empty

    x = CellAddress("x", "S2")
    routes = [
        Route.to_topic("n", A),
        Route.to_queue("n", A),
        Route.alias(x, B),
        Route.to_address(x, A),
        Route.to_domain("S2", A),
        Route.default(C1),
    ]
    table = RouteTable(routes)
    matches = [
        table.topics("n"),
        table.queues("n"),
        table.at((RouteType.EXACT, x.cell, x.domain)),
        table.domains("S2"),
    ]
    assert [list(match) for match in matches] == [routes[:1], routes[1:2], routes[2:4], routes[4:5]]
    assert list(table.defaults()) == routes[5:]
    assert list(table.topics("other")) == []

    x, y = CellAddress("x", "S2"), CellAddress("y", "S2")
    exact, alias = Route.to_address(x, A), Route.alias(y, B)
    table = RouteTable([exact, alias, Route.to_domain("S3", A)])
    assert table.has_exacts("S2")
    assert not table.has_exacts("S3")
    shrunk = table.deleted(exact)
    assert shrunk.has_exacts("S2")
    assert not shrunk.deleted(alias).has_exacts("S2")
    assert shrunk.deleted(alias).added(exact).has_exacts("S2")
    assert table.has_exacts("S2")


def test_a_duplicate_is_refused_and_a_route_deleted_whatever_its_zone() -> None:
    table = RouteTable([Route.default(C1, "east")])
    for route in (Route.default(C1, "east"), Route.default(C1, "west"), Route.default(C1)):
        assert route in table
        with pytest.raises(DuplicateRouteError, match="already"):
            table.added(route)
    with pytest.raises(DuplicateRouteError, match="duplicate route"):
        RouteTable([Route.default(C1), Route.default(C1)])

    table = RouteTable([Route.to_topic("T", S2, "east")])
    assert len(table.deleted(Route.to_topic("T", S2))) == 0

    table = RouteTable([Route.to_queue("Q", A)])
    for route in (Route.to_queue("Q", B), Route.to_topic("Q", A), Route.to_queue("R", A)):
        assert route not in table
        with pytest.raises(RouteNotFoundError, match="it does not exist") as caught:
            table.deleted(route)
        assert isinstance(caught.value, LookupError)
    assert "nothing" not in table


def test_change_is_atomic_or_lenient() -> None:
    table = RouteTable([Route.to_queue("Q", A)])
    with pytest.raises(RouteRejectedError):
        table.changed(added=[Route.to_queue("R", A), Route.to_queue("Q", A)])
    assert list(table) == [Route.to_queue("Q", A)]

    table = RouteTable([Route.to_queue("Q", S2, "east")])
    moved = table.changed(
        added=[Route.to_queue("Q", S2, "west")], deleted=[Route.to_queue("Q", S2, "east")]
    )
    assert list(moved) == [Route.to_queue("Q", S2, "west")]

    table = RouteTable([Route.to_queue("Q", A)])
    changed = table.changed(
        added=[Route.to_queue("Q", A), Route.to_queue("R", A)],
        deleted=[Route.to_queue("X", A)],
        is_strict=False,
    )
    assert sorted(map(str, changed)) == ["queue Q@* -> a@S1", "queue R@* -> a@S1"]


def test_tables_compare_by_routes_and_show_their_count() -> None:
    one, other = Route.to_queue("Q", A), Route.default(C1)
    assert RouteTable([one, other]) == RouteTable([other, one])
    assert RouteTable([one]) != RouteTable([other])
    assert RouteTable() != "routes"
    with pytest.raises(TypeError, match="unhashable"):
        hash(RouteTable())

    table = RouteTable([Route.to_queue("Q", A), Route.to_queue("Q", B), Route.default(C1)])
    assert repr(table) == "<RouteTable: 1 default, 2 queue>"
    assert repr(RouteTable()) == "<RouteTable: empty>"

    table = RouteTable([Route.to_topic("T", A), Route.to_queue("Q", A), Route.to_queue("Q", B)])
    assert list(table.without_target(A)) == [Route.to_queue("Q", B)]


def test_targets_lead_somewhere_or_nowhere(subtests: pytest.Subtests) -> None:
    for route in [
        Route.to_queue("Q", A),
        Route.to_queue("Q", CellAddress("a")),
        Route.to_topic("T", S2),
        Route.default(C1),
        Route.alias(CellAddress("x"), CellAddress("anything", "S9")),
    ]:
        with subtests.test(route=route):
            check_route_target(route, domain="S1", cells={"a"})

    for route in [
        Route.to_queue("Q", B),
        Route.to_queue("Q", CellAddress("a", "S2")),
        Route.to_queue("Q", CellAddress.of_domain("S1")),
        Route.to_domain("S2", CellAddress("gone")),
    ]:
        with subtests.test(route=route), pytest.raises(CellNotFoundError, match="has no cell"):
            check_route_target(route, domain="S1", cells={"a"})


THROUGH_A = [
    Route.to_domain("S2", A),
    Route.to_address(CellAddress("x", "S2"), A),
    Route.default(A),
]


def test_only_remote_targets_need_a_tunnel(subtests: pytest.Subtests) -> None:
    for route in THROUGH_A:
        with subtests.test(route=route):
            check_route_target(route, domain="S1", cells={"a", "b"}, gateways={"a"})
            with pytest.raises(CellNotFoundError, match="a@S1 is no tunnel"):
                check_route_target(route, domain="S1", cells={"a", "b"}, gateways={"b"})

    for route in [
        Route.to_queue("Q", A),
        Route.to_topic("T", A),
        Route.alias(CellAddress("x", "S2"), A),
        Route.to_domain("S3", S2),
        Route.default(C1),
    ]:
        with subtests.test(route=route):
            check_route_target(route, domain="S1", cells={"a"}, gateways=())


# Listing.

LISTED = [
    Route.default(C1, "east"),
    Route.to_domain("S2", CellAddress("to-S2", "S1")),
    Route.to_queue("Q", S2),
    Route.to_queue("Q", A),
    Route.alias(CellAddress("x"), B),
    Route.to_address(CellAddress("x"), A),
    Route.to_topic("U", A),
    Route.to_topic("T", A),
]


def test_routes_are_listed_in_order_and_selected() -> None:
    assert list(map(str, filter_routes(LISTED))) == [
        "topic T@* -> a@S1",
        "topic U@* -> a@S1",
        "alias x@local -> b@S1",
        "exact x@local -> a@S1",
        "queue Q@* -> *@S2",
        "queue Q@* -> a@S1",
        "domain *@S2 -> to-S2@S1",
        "default *@* -> *@C1 zone east",
    ]
    assert filter_routes(LISTED, type=RouteType.DEFAULT) == LISTED[:1]
    assert filter_routes(LISTED, destination="Q*") == LISTED[2:4]
    assert filter_routes(LISTED, target="to-??@S1") == LISTED[1:2]
    assert filter_routes(LISTED, destination="q*") == []
    assert filter_routes(LISTED, destination="Q") == LISTED[2:4]
    assert filter_routes(LISTED, destination="Q@S2") == []
