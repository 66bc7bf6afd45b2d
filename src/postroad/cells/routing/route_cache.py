"""The cache of routing results: each is kept until a route or a cell that it depends on changes.

Results of one kind are in a section: the decisions of the domain, the fast paths of a tunnel, the
destinations of local senders. All sections share one index from what results depend on to the
results, so that a change forgets the results that it may change, and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from postroad.cells.routing.route_table import RouteKey

Dependency: TypeAlias = RouteKey | str
"""A key of the route table, whether there are routes or not, or the name of a local cell.

The key of the routes to a domain also stands for what is known of it as a neighbor.
"""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RouteCache:
    """All cached results of a domain."""

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

    Args:
        cache: the cache of the domain.
        size_max: sum of the sizes of the results before all are forgotten; peers choose the keys.
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
