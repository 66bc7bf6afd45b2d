"""Where an action or an event can be handled: endpoints, and lists of those that are equal.

A list keeps what is available as a tuple, made anew when it is needed after a change: choosing is
done for every call, and a node that comes or goes changes many lists at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from .schema import INTERNAL_PREFIX, ActionInfo, EventInfo

Info = TypeVar("Info", bound=ActionInfo | EventInfo)


class Host(Protocol):
    """What the choice between endpoints depends on at their nodes."""

    @property
    def id(self) -> str: ...

    @property
    def hostname(self) -> str: ...

    @property
    def cpu(self) -> float | None: ...

    @property
    def is_local(self) -> bool: ...

    @property
    def is_doubtful(self) -> bool: ...


class Endpoint(Generic[Info]):
    """One action or event of one service of one node."""

    __slots__ = ("_is_accepting", "info", "node", "service", "way")

    def __init__(self, node: Host, service: str, info: Info) -> None:
        self.node = node
        self.service = service
        """The full name of the service."""
        self.info = info
        self._is_accepting = True
        self.way: Any = None
        """How it is reached, kept here by whoever found out; None again when the info changes."""

    @property
    def node_id(self) -> str:
        """The node it is at."""
        return self.node.id

    @property
    def is_local(self) -> bool:
        """Whether it is at this node."""
        return self.node.is_local

    @property
    def is_accepting(self) -> bool:
        """Whether its circuit breaker lets calls through."""
        return self._is_accepting

    def __repr__(self) -> str:
        state = "" if self._is_accepting else ", broken"
        return f"<Endpoint {self.info.name} of {self.service} at {self.node.id}{state}>"


class Strategy(Protocol):
    """Chooses one of several endpoints. Each list has its own."""

    def select(
        self,
        available: tuple[Endpoint[Any], ...],
        every: tuple[Endpoint[Any], ...],
        params: Any,
        meta: Mapping[str, Any],
    ) -> Endpoint[Any]:
        """One of `available`, which is never empty; `every` has also those that are broken."""
        ...


_NO_META: Mapping[str, Any] = {}


class EndpointList(Generic[Info]):
    """The endpoints of one action, or of one pattern of events in one group."""

    def __init__(self, name: str, group: str, strategy: Strategy, *, prefers_local: bool) -> None:
        self.name = name
        self.group = group
        self.strategy = strategy
        self._prefers_local = prefers_local
        self._is_internal = name.startswith(INTERNAL_PREFIX)
        self._endpoints: dict[tuple[str, str], Endpoint[Info]] = {}
        # Made from the endpoints when they are asked for after a change.
        self._is_stale = False
        self._every: tuple[Endpoint[Info], ...] = ()
        self._available: tuple[Endpoint[Info], ...] = ()
        self._local: tuple[Endpoint[Info], ...] = ()
        self._local_available: tuple[Endpoint[Info], ...] = ()
        self._preferred: tuple[tuple[Endpoint[Info], ...], tuple[Endpoint[Info], ...]] = (), ()
        self._only: Endpoint[Info] | None = None

    # What is known.

    def __iter__(self) -> Iterator[Endpoint[Info]]:
        return iter(self._endpoints.values())

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def available(self) -> tuple[Endpoint[Info], ...]:
        """Those that a call or an event can be given to, where there is a choice."""
        if self._is_stale:
            self._refresh()
        return self._available

    @property
    def accepting(self) -> Iterator[Endpoint[Info]]:
        """All that are not broken, also those at nodes that others are preferred to."""
        return (it for it in self if it.is_accepting)

    @property
    def has_local(self) -> bool:
        """Whether one is at this node, broken or not."""
        return any(it.is_local for it in self)

    def at(self, node_id: str) -> Endpoint[Info] | None:
        """The first one at a node that is not broken."""
        return next((it for it in self.accepting if it.node.id == node_id), None)

    def has_node(self, node_id: str) -> bool:
        """Whether one is at a node, broken or not."""
        return any(it.node.id == node_id for it in self)

    # The choice.

    def choose(
        self, params: Any = None, meta: Mapping[str, Any] = _NO_META
    ) -> Endpoint[Info] | None:
        """The endpoint for the next call or event; None if none is available.

        One at this node wins if the list prefers that; names that begin with `$` never leave it.
        """
        if self._is_stale:
            self._refresh()
        return self._only or self._select(*self._preferred, params, meta)

    def choose_local(
        self, params: Any = None, meta: Mapping[str, Any] = _NO_META
    ) -> Endpoint[Info] | None:
        """The same among those at this node."""
        if self._is_stale:
            self._refresh()
        return self._select(self._local_available, self._local, params, meta)

    def _select(
        self,
        available: tuple[Endpoint[Info], ...],
        every: tuple[Endpoint[Info], ...],
        params: Any,
        meta: Mapping[str, Any],
    ) -> Endpoint[Info] | None:
        if len(every) == 1 or not available:
            return available[0] if available else None
        return self.strategy.select(available, every, params, meta)

    # What changes it.

    def put(self, node: Host, service: str, info: Info) -> None:
        """Add an endpoint, or renew what is said of it; a broken one stays broken."""
        known = self._endpoints.get((node.id, service))
        if known is not None and known.node is node:
            known.info, known.way = info, None
            return
        self._endpoints[node.id, service] = Endpoint(node, service, info)
        self._is_stale = True

    def remove(self, node_id: str, service: str) -> None:
        """Take an endpoint out."""
        if self._endpoints.pop((node_id, service), None) is not None:
            self._is_stale = True

    def set_accepting(self, node_id: str, is_accepting: bool) -> None:
        """What the circuit breaker of this name at a node says."""
        for (at, _), endpoint in self._endpoints.items():
            if at == node_id:
                endpoint._is_accepting = is_accepting
        self._is_stale = True

    def doubt(self) -> None:
        """A node is doubtful, or is not any more."""
        self._is_stale = True

    def _refresh(self) -> None:
        self._is_stale = False
        self._every = tuple(self._endpoints.values())
        accepting = tuple(self.accepting)
        self._available = tuple(it for it in accepting if not it.node.is_doubtful) or accepting
        self._local = tuple(it for it in self._every if it.is_local)
        self._local_available = tuple(it for it in self._local if it.is_accepting)
        self._prefer()

    def _prefer(self) -> None:
        """Find out what to choose from, and whether there is anything to choose."""
        is_here = self._is_internal or (self._prefers_local and bool(self._local_available))
        if self._local and is_here:
            self._preferred = self._local_available, self._local
        else:
            self._preferred = self._available, self._every
        available, every = self._preferred
        self._only = available[0] if len(every) == 1 and available else None

    def __repr__(self) -> str:
        group = f" in {self.group}" if self.group else ""
        return f"<EndpointList {self.name}{group}: {len(self.available)} of {len(self)} available>"
