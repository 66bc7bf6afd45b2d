"""The route table, immutable: a change makes another table.

Type, destination and target identify a route. In dCache the zone belongs to the key as well, so
that a clean-up that does not know the zone leaves routes behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import ref

from postroad.cells.addresses import ANY, LOCAL, CellAddress
from postroad.cells.errors import CellNotFoundError, DuplicateRouteError, RouteNotFoundError
from postroad.cells.routing.route import Route, RouteType

# Exact routes and aliases of an address share one list, in which the older is tried first.
_GROUPS = {type: type for type in RouteType} | {RouteType.ALIAS: RouteType.EXACT}
_Routes: TypeAlias = dict[tuple[RouteType, CellAddress], Route]

RouteKey: TypeAlias = tuple[RouteType, str, str]
"""Type, cell and domain of the routes that a lookup returns; aliases are among the exact routes."""

_LIST_ORDER = {group: index for index, group in enumerate(RouteType)}


class RouteTable:
    """All routes of a domain; immutable."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._routes: dict[RouteKey, _Routes] = {}
        self._count = 0
        # Number of exact routes and aliases of each domain.
        self._exacts: Counter[str] = Counter()
        # The table that this one was made of, and where they may differ.
        self._previous: ref[RouteTable] | None = None
        self._changed_keys: set[RouteKey] = set()
        copied: set[RouteKey] = set()
        for route in routes:
            if not self._insert(route, copied):
                raise DuplicateRouteError(f"duplicate route: {route}")

    # Changes.

    def added(self, *routes: Route) -> RouteTable:
        """Return the table with further routes; raises DuplicateRouteError if it has one."""
        return self.changed(added=routes)

    def deleted(self, *routes: Route) -> RouteTable:
        """Return the table without these routes; raises RouteNotFoundError if one is missing."""
        return self.changed(deleted=routes)

    def changed(
        self, *, added: Iterable[Route] = (), deleted: Iterable[Route] = (), is_strict: bool = True
    ) -> RouteTable:
        """Return the table without some routes and with others.

        Args:
            added: routes to add, after the deletions.
            is_strict: whether existing and missing routes are errors; True by default.

        Raises:
            DuplicateRouteError: an added route exists.
            RouteNotFoundError: a deleted route is missing.
        """
        table = RouteTable()
        table._routes = dict(self._routes)
        table._count = self._count
        table._exacts = self._exacts.copy()
        copied: set[RouteKey] = set()
        table._previous = ref(self)
        for route in deleted:
            table._changed_keys.update(_keys_changed_by(route))
            if not table._remove(route, copied) and is_strict:
                raise RouteNotFoundError(f"cannot delete route {route}: it does not exist")
        for route in added:
            table._changed_keys.update(_keys_changed_by(route))
            if not table._insert(route, copied) and is_strict:
                raise DuplicateRouteError(f"cannot add route {route}: it exists already")
        return table

    def without_target(self, target: CellAddress) -> RouteTable:
        """Return the table without all routes to a removed cell or domain."""
        return self.changed(deleted=[route for route in self if route.target == target])

    def keys_changed_since(self, before: RouteTable) -> Collection[RouteKey]:
        """Return the keys at which two tables may differ; fast if this one was made of the other.

        Exact routes have a further key, see `key_of_exacts`.
        """
        if self._previous is not None and self._previous() is before:
            return self._changed_keys
        differing = [
            route
            for key in self._routes.keys() | before._routes.keys()
            for route in (*self.at(key), *before.at(key))
            if list(self.at(key)) != list(before.at(key))
        ]
        return {key for route in differing for key in _keys_changed_by(route)}

    # Lookups, in the order in which routes were added.

    def at(self, key: RouteKey) -> Collection[Route]:
        routes = self._routes.get(key)
        return routes.values() if routes else ()

    def topics(self, name: str) -> Collection[Route]:
        return self.at((RouteType.TOPIC, name, ANY))

    def queues(self, name: str) -> Collection[Route]:
        return self.at((RouteType.QUEUE, name, ANY))

    def has_exacts(self, domain: str) -> bool:
        """Return whether any address of a domain has an exact route or an alias."""
        return self._exacts[domain] > 0

    def domains(self, name: str) -> Collection[Route]:
        return self.at((RouteType.DOMAIN, ANY, name))

    def defaults(self) -> Collection[Route]:
        return self.at((RouteType.DEFAULT, ANY, ANY))

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

    # Internals. `copied` has the keys whose routes are not shared with another table.

    def _insert(self, route: Route, copied: set[RouteKey]) -> bool:
        key = _key(route)
        if route.identity in self._routes.get(key, ()):
            return False
        self._copy_for_write(key, copied)[route.identity] = route
        self._count += 1
        if key[0] is RouteType.EXACT:
            self._exacts[route.domain] += 1
        return True

    def _remove(self, route: Route, copied: set[RouteKey]) -> bool:
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

    def _copy_for_write(self, key: RouteKey, copied: set[RouteKey]) -> _Routes:
        if key not in copied:
            copied.add(key)
            self._routes[key] = dict(self._routes.get(key, {}))
        return self._routes[key]


def _key(route: Route) -> RouteKey:
    return _GROUPS[route.type], route.cell, route.domain


def _keys_changed_by(route: Route) -> Iterator[RouteKey]:
    """Yield the keys that a change of a route concerns."""
    yield (key := _key(route))
    if key[0] is RouteType.EXACT:
        yield key_of_exacts(route.domain)


def key_of_exacts(domain: str) -> RouteKey:
    """Return the key that stands for the exact routes and aliases of all addresses of a domain."""
    return RouteType.EXACT, ANY, domain


def check_route_target(
    route: Route, *, domain: str, cells: Collection[str], gateways: Collection[str] | None = None
) -> None:
    """Check the target of a route; raises CellNotFoundError if it does not exist.

    An alias may have any target. Other routes lead to another domain or to an existing cell of
    this one, which must be a gateway unless the route is one of a queue or topic.
    """
    target = route.target
    if route.type is RouteType.ALIAS or (target.is_domain and target.domain != domain):
        return
    if target.domain not in (domain, LOCAL) or target.cell not in cells:
        raise CellNotFoundError(f"cannot add route {route}: domain {domain} has no cell {target}")
    is_for_gateway = route.type not in (RouteType.QUEUE, RouteType.TOPIC)
    if is_for_gateway and gateways is not None and target.cell not in gateways:
        raise CellNotFoundError(
            f"cannot add route {route}: {target} is no tunnel; use a tunnel or an alias"
        )


# Listings.


def filter_routes(
    routes: Iterable[Route],
    *,
    type: RouteType | None = None,
    destination: str | None = None,
    target: str | None = None,
) -> list[Route]:
    """Return the matching routes, sorted. `destination` and `target` are globs with `*` and `?`.

    A pattern without `@` matches the cell name in any domain. Routes of one address stay in the
    order in which they are tried.
    """
    chosen = [
        route
        for route in routes
        if (type is None or route.type is type)
        and (destination is None or _matches(route.destination, destination))
        and (target is None or _matches(str(route.target), target))
    ]
    return sorted(chosen, key=_sort_key)


def _matches(address: str, pattern: str) -> bool:
    """Return whether an address matches; a pattern without `@` matches the cell name."""
    return fnmatchcase(address if "@" in pattern else address.partition("@")[0], pattern)


def _sort_key(route: Route) -> tuple[int, str, str, str]:
    group = _GROUPS[route.type]
    target = "" if group is RouteType.EXACT else str(route.target)
    return _LIST_ORDER[group], route.cell, route.domain, target


Dependency: TypeAlias = RouteKey | str
"""A key of the route table, whether there are routes or not, or the name of a local cell.

The key of the routes to a domain also stands for what is known of it as a neighbor.
"""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RouteCache:
    """All cached results of a domain, each kept until a route or cell that it depends on changes.

    Results of one kind are in a section: the decisions of the domain, the fast paths of a tunnel,
    the destinations of local senders.
    """

    def __init__(self) -> None:
        self._dependents: dict[Dependency, set[tuple[CacheSection[Any, Any], Hashable]]] = {}

    def invalidate(self, changed: Iterable[Dependency]) -> None:
        """Forget the results that depend on any of these."""
        for dependency in changed:
            for section, key in list(self._dependents.get(dependency, ())):
                section.evict(key)

    def link(
        self, section: CacheSection[Any, Any], key: Hashable, dependencies: Iterable[Dependency]
    ) -> None:
        """Record what a result depends on."""
        for dependency in dependencies:
            self._dependents.setdefault(dependency, set()).add((section, key))

    def unlink(
        self, section: CacheSection[Any, Any], key: Hashable, dependencies: Iterable[Dependency]
    ) -> None:
        for dependency in dependencies:
            dependents = self._dependents[dependency]
            dependents.discard((section, key))
            if not dependents:
                del self._dependents[dependency]

    def __len__(self) -> int:
        """Return the number of routes and cells that any result depends on."""
        return len(self._dependents)


class CacheSection(Generic[K, V]):
    """Cached results of one kind.

    All are forgotten when the sum of their sizes exceeds `size_max`: peers choose the keys.
    """

    def __init__(self, cache: RouteCache, size_max: int) -> None:
        self._cache = cache
        self._size_max = size_max
        self.size = 0
        self.results: dict[K, V] = {}
        """For lookups; changed by `put`, `evict` and `clear` only."""
        self._details: dict[K, tuple[int, Collection[Dependency]]] = {}

    def put(self, key: K, result: V, dependencies: Collection[Dependency], size: int = 1) -> None:
        """Store a result in the place of any older one."""
        self.evict(key)
        if self.size + size > self._size_max:
            self.clear()
        self.size += size
        self.results[key] = result
        self._details[key] = size, dependencies
        self._cache.link(self, key, dependencies)

    def evict(self, key: K) -> None:
        """Remove a result, if it is stored."""
        if key in self.results:
            del self.results[key]
            size, dependencies = self._details.pop(key)
            self.size -= size
            self._cache.unlink(self, key, dependencies)

    def clear(self) -> None:
        for key in list(self.results):
            self.evict(key)
