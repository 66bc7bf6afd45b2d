"""The routing table: immutable, so that whoever holds one sees it unchanged.

A route is told from others by type, destination and target. In the system this follows the zone
belongs to it as well, so that a clean-up which does not know the zone leaves routes behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from postroad.cells.addresses import ANY, LOCAL, CellAddress
from postroad.cells.errors import CellNotFoundError, DuplicateRouteError, RouteNotFoundError
from postroad.cells.routing.route import Route, RouteType

# Exact routes and aliases share one list for each address: the older one is tried first.
_GROUPS = {type: type for type in RouteType} | {RouteType.ALIAS: RouteType.EXACT}
_Key = tuple[RouteType, str, str]
_Routes = dict[tuple[RouteType, CellAddress], Route]

_LIST_ORDER = {group: index for index, group in enumerate(RouteType)}
_HEADINGS = ("TYPE", "DESTINATION", "TARGET", "ZONE")


class RouteTable:
    """All routes of a domain at one time; changes make another table."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._routes: dict[_Key, _Routes] = {}
        self._count = 0
        # How many routes of their own the addresses of each domain have.
        self._exacts: Counter[str] = Counter()
        copied: set[_Key] = set()
        for route in routes:
            if not self._insert(route, copied):
                raise DuplicateRouteError(f"route {route} is given twice")

    # Changes.

    def added(self, *routes: Route) -> RouteTable:
        """The table with further routes; raises DuplicateRouteError if it has one of them."""
        return self.changed(added=routes)

    def deleted(self, *routes: Route) -> RouteTable:
        """The table without these routes; raises RouteNotFoundError if it lacks one of them."""
        return self.changed(deleted=routes)

    def changed(
        self, *, added: Iterable[Route] = (), deleted: Iterable[Route] = (), is_strict: bool = True
    ) -> RouteTable:
        """The table without some routes and with others, at the price of one copy.

        Unless it is strict, routes that are there already or not at all do not matter.
        """
        table = RouteTable()
        table._routes = dict(self._routes)
        table._count = self._count
        table._exacts = self._exacts.copy()
        copied: set[_Key] = set()
        for route in deleted:
            if not table._remove(route, copied) and is_strict:
                raise RouteNotFoundError(f"no route {route}")
        for route in added:
            if not table._insert(route, copied) and is_strict:
                raise DuplicateRouteError(f"there is a route {route} already")
        return table

    def without_target(self, target: CellAddress) -> RouteTable:
        """The table without all routes to a cell or domain that is gone."""
        return self.changed(deleted=[route for route in self if route.target == target])

    # Looking up. All in the order they were added.

    def topics(self, name: str) -> Collection[Route]:
        """Where copies of a message to a topic go."""
        return self._at(RouteType.TOPIC, name, ANY)

    def queues(self, name: str) -> Collection[Route]:
        """Where a message to a queue may go."""
        return self._at(RouteType.QUEUE, name, ANY)

    def exacts(self, address: CellAddress) -> Collection[Route]:
        """Exact routes and aliases of an address."""
        return self._at(RouteType.EXACT, address.cell, address.domain)

    def has_exacts(self, domain: str) -> bool:
        """Whether any address of a domain has an exact route or an alias."""
        return self._exacts[domain] > 0

    def domains(self, name: str) -> Collection[Route]:
        """Gateways to a domain."""
        return self._at(RouteType.DOMAIN, ANY, name)

    def defaults(self) -> Collection[Route]:
        """Ways for everything else."""
        return self._at(RouteType.DEFAULT, ANY, ANY)

    def __contains__(self, route: object) -> bool:
        return isinstance(route, Route) and route.identity in self._routes.get(_key(route), ())

    def __iter__(self) -> Iterator[Route]:
        for routes in self._routes.values():
            yield from routes.values()

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RouteTable) and self._routes == other._routes

    __hash__ = None  # type: ignore[assignment]  # Equal tables may list their routes differently.

    def __repr__(self) -> str:
        counts = Counter(route.type.value for route in self)
        summary = ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
        return f"<RouteTable: {summary or 'empty'}>"

    # Underneath. `owned` has the lists that were copied and may be changed.

    def _at(self, group: RouteType, cell: str, domain: str) -> Collection[Route]:
        routes = self._routes.get((group, cell, domain))
        return routes.values() if routes else ()

    def _insert(self, route: Route, copied: set[_Key]) -> bool:
        key = _key(route)
        if route.identity in self._routes.get(key, ()):
            return False
        self._copy_for_write(key, copied)[route.identity] = route
        self._count += 1
        if key[0] is RouteType.EXACT:
            self._exacts[route.domain] += 1
        return True

    def _remove(self, route: Route, copied: set[_Key]) -> bool:
        key = _key(route)
        if route.identity not in self._routes.get(key, ()):
            return False
        routes = self._copy_for_write(key, copied)
        del routes[route.identity]
        self._count -= 1
        if key[0] is RouteType.EXACT:
            self._exacts[route.domain] -= 1
        if not routes:
            del self._routes[key]
            copied.discard(key)
        return True

    def _copy_for_write(self, key: _Key, copied: set[_Key]) -> _Routes:
        if key not in copied:
            copied.add(key)
            self._routes[key] = dict(self._routes.get(key, {}))
        return self._routes[key]


def _key(route: Route) -> _Key:
    return _GROUPS[route.type], route.cell, route.domain


def check_route_target(
    route: Route,
    *,
    domain: str,
    cells: Collection[str],
    gateways: Collection[str] | None = None,
) -> None:
    """Refuse a route of a domain that leads nowhere; raises CellNotFoundError.

    An alias may be any address. The others lead to another domain or to a cell of this one, which
    must be there; unless it is the route of a queue or a topic, to one of the gateways if they are
    told.
    """
    target = route.target
    if route.type is RouteType.ALIAS or (target.is_domain and target.domain != domain):
        return
    if target.domain not in (domain, LOCAL) or target.cell not in cells:
        raise CellNotFoundError(
            f"no such cell: {target}, which route {route} needs in domain {domain}"
        )
    is_for_gateway = route.type not in (RouteType.QUEUE, RouteType.TOPIC)
    if is_for_gateway and gateways is not None and target.cell not in gateways:
        raise CellNotFoundError(
            f"{target} is no tunnel, as route {route} needs one; an alias needs none"
        )


# Listing.


def filter_routes(
    routes: Iterable[Route],
    *,
    type: RouteType | None = None,
    destination: str | None = None,
    target: str | None = None,
) -> list[Route]:
    """The routes that fit, sorted. `destination` and `target` are patterns with `*` and `?`.

    A pattern without `@` is for the name alone, of whatever domain.

    Routes of one address stay in the order that they are tried in.
    """
    chosen = [
        route
        for route in routes
        if (type is None or route.type is type)
        and (destination is None or _fits(route.destination, destination))
        and (target is None or _fits(str(route.target), target))
    ]
    return sorted(chosen, key=_sort_key)


def _fits(address: str, pattern: str) -> bool:
    """Whether an address fits; a pattern without a domain is for the name before it."""
    return fnmatchcase(address if "@" in pattern else address.partition("@")[0], pattern)


def format_routes(routes: Iterable[Route]) -> str:
    """The routes as `route ls` prints them: aligned columns below a line of headings."""
    rows = [_HEADINGS, *(_row(route) for route in routes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _sort_key(route: Route) -> tuple[int, str, str, str]:
    group = _GROUPS[route.type]
    target = "" if group is RouteType.EXACT else str(route.target)
    return _LIST_ORDER[group], route.cell, route.domain, target


def _row(route: Route) -> tuple[str, ...]:
    return route.type.value, route.destination, str(route.target), route.zone or ""
