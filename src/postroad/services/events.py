"""The events of the cluster: who subscribed to what, and who gets an event.

An emitted event goes to one endpoint of each group, a broadcast one to all. The sender decides
which nodes get it; a node that gets an emitted event runs one local handler for each of its
subscriptions that fit the name and the groups that came with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from .actions import strategy_of
from .balancing import StrategyMaker
from .endpoints import Endpoint, EndpointList, Host
from .patterns import matches
from .schema import EventInfo

REMEMBERED_NAMES_MAX = 2_000
"""Names of events whose subscriptions are remembered; names may be made up, so not all are."""

EventEndpoint = Endpoint[EventInfo]
EventList = EndpointList[EventInfo]
_NO_META: Mapping[str, Any] = {}


class EventPlan(NamedTuple):
    """Who gets an event."""

    local: tuple[EventEndpoint, ...]
    """The endpoints at this node whose handlers run."""
    remote: Mapping[str, tuple[str, ...]]
    """The nodes it is sent to, and the groups each is to serve: every group once."""


class EventCatalog:
    """All known subscriptions.

    Args:
        strategies: makes the strategy of each list.
        prefers_local: whether an endpoint at this node wins.
    """

    def __init__(self, strategies: StrategyMaker, *, prefers_local: bool) -> None:
        self._strategies = strategies
        self._prefers_local = prefers_local
        self._lists: dict[tuple[str, str], EventList] = {}
        self._fitting: dict[str, tuple[EventList, ...]] = {}

    def __iter__(self) -> Iterator[EventList]:
        return iter(self._lists.values())

    # Who gets what.

    def groups_of(self, name: str) -> tuple[str, ...]:
        """Every group with a subscription to an event."""
        return tuple(dict.fromkeys(found.group for found in self._fit(name) if len(found)))

    def plan_emit(
        self,
        name: str,
        groups: Collection[str] = (),
        params: Any = None,
        meta: Mapping[str, Any] = _NO_META,
    ) -> EventPlan:
        """One endpoint for each group, or for each of the given ones.

        A node serves all subscriptions of a group it is sent; so once a node is chosen for a group,
        other subscriptions of the group that it has too need no choice of their own. The original
        chooses for each of them, and two nodes may then handle the same event.
        """
        local: list[EventEndpoint] = []
        chosen: dict[str, dict[str, None]] = {}
        for found in self._wanted(name, groups):
            nodes = chosen.setdefault(found.group, {})
            endpoint = _covering(found, nodes) or found.choose(params, meta)
            if endpoint is None:
                continue
            if endpoint.is_local:
                local.append(endpoint)
            nodes[endpoint.node.id] = None
        return EventPlan(tuple(local), _by_node(chosen, {it.node.id for it in local}))

    def plan_acked(
        self,
        name: str,
        groups: Collection[str],
        params: Any,
        meta: Mapping[str, Any],
        can_ack: Callable[[str], bool],
    ) -> dict[str, dict[str, None]]:
        """The nodes of each group that get an emitted event whose sender waits for them.

        Nodes that can acknowledge it are preferred; others are chosen where there is no other.
        """
        chosen: dict[str, dict[str, None]] = {}
        for found in self._wanted(name, groups):
            nodes = chosen.setdefault(found.group, {})
            endpoint = _covering(found, nodes) or found.choose(params, meta)
            if endpoint is not None and not (endpoint.is_local or can_ack(endpoint.node.id)):
                able = (it for it in found.available if it.is_local or can_ack(it.node.id))
                endpoint = next(able, endpoint)
            if endpoint is not None:
                nodes[endpoint.node.id] = None
        return {group: nodes for group, nodes in chosen.items() if nodes}

    def nodes_of(self, name: str, groups: Collection[str] = ()) -> dict[str, dict[str, None]]:
        """All nodes of each group that may get an event."""
        nodes: dict[str, dict[str, None]] = {}
        for found in self._wanted(name, groups):
            for endpoint in found.accepting:
                nodes.setdefault(found.group, {})[endpoint.node.id] = None
        return nodes

    def plan_broadcast(self, name: str, groups: Collection[str] = ()) -> EventPlan:
        """Every endpoint, once for each remote node; the groups go with it as they were given."""
        nodes = dict.fromkeys(
            endpoint.node.id
            for found in self._wanted(name, groups)
            for endpoint in found.accepting
            if not endpoint.is_local
        )
        given = tuple(dict.fromkeys(groups))
        return EventPlan(self.local_broadcast(name, groups), dict.fromkeys(nodes, given))

    def local_emit(self, name: str, groups: Collection[str] = ()) -> tuple[EventEndpoint, ...]:
        """The handlers at this node for an emitted event: one for each subscription that fits."""
        endpoints = (found.choose_local() for found in self._wanted(name, groups))
        return tuple(endpoint for endpoint in endpoints if endpoint is not None)

    def local_broadcast(self, name: str, groups: Collection[str] = ()) -> tuple[EventEndpoint, ...]:
        """The handlers at this node for a broadcast event: all that fit."""
        return tuple(
            endpoint
            for found in self._wanted(name, groups)
            for endpoint in found
            if endpoint.is_local
        )

    def _wanted(self, name: str, groups: Collection[str]) -> Iterator[EventList]:
        return (found for found in self._fit(name) if not groups or found.group in groups)

    def _fit(self, name: str) -> tuple[EventList, ...]:
        fitting = self._fitting.get(name)
        if fitting is None:
            if len(self._fitting) >= REMEMBERED_NAMES_MAX:
                self._fitting.clear()
            fitting = tuple(it for it in self._lists.values() if matches(name, it.name))
            self._fitting[name] = fitting
        return fitting

    # What changes it.

    def put(self, node: Host, service: str, group: str, event: EventInfo) -> str | None:
        """Add or renew an endpoint; gives what was wrong with its definition, if anything was."""
        found = self._lists.get((event.name, group))
        problem = None
        if not found:
            strategy, problem = strategy_of(event, self._strategies)
            found = EndpointList(event.name, group, strategy, prefers_local=self._prefers_local)
            self._lists[event.name, group] = found
            self._fitting.clear()
        found.put(node, service, event)
        return problem

    def remove(self, node_id: str, service: str, group: str, name: str) -> None:
        """Take an endpoint out."""
        found = self._lists.get((name, group))
        if found is not None:
            found.remove(node_id, service)
            if not found:
                del self._lists[name, group]
                self._fitting.clear()

    def doubt(self, group: str, name: str) -> None:
        """A node that listens to it is doubtful, or is not any more."""
        if (found := self._lists.get((name, group))) is not None:
            found.doubt()


def _covering(found: EventList, nodes: Mapping[str, None]) -> EventEndpoint | None:
    if not nodes:
        return None
    return next((it for it in found.available if it.node.id in nodes), None)


def _by_node(
    chosen: Mapping[str, Mapping[str, None]], local_ids: Collection[str]
) -> dict[str, tuple[str, ...]]:
    groups_of: dict[str, list[str]] = {}
    for group, nodes in chosen.items():
        for node_id in nodes:
            if node_id not in local_ids:
                groups_of.setdefault(node_id, []).append(group)
    return {node_id: tuple(groups) for node_id, groups in groups_of.items()}
