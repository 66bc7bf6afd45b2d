"""What nodes offer, as endpoints: services go in whole, and their actions and events come out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .actions import ActionCatalog
from .balancing import StrategyMaker
from .events import EventCatalog
from .nodes import NodeRecord
from .schema import ActionInfo, ServiceInfo, Visibility


class _Keys(NamedTuple):
    """What endpoints are known by at one node."""

    actions: set[tuple[str, str]]
    events: set[tuple[str, str, str]]


class Offers:
    """All endpoints of the cluster.

    Args:
        strategies: makes the strategy of each action and event.
        prefers_local: whether an endpoint at this node wins.
    """

    def __init__(self, strategies: StrategyMaker, *, prefers_local: bool) -> None:
        self.actions = ActionCatalog(strategies, prefers_local=prefers_local)
        self.events = EventCatalog(strategies, prefers_local=prefers_local)

    def replace(
        self, node: NodeRecord, before: tuple[ServiceInfo, ...], after: tuple[ServiceInfo, ...]
    ) -> list[str]:
        """Replace some services of a node by others; gives what was wrong with those.

        Endpoints that stay are renewed, not made anew, so that a broken one stays broken.
        """
        gone, stay = _keys(node, before), _keys(node, after)
        problems = [problem for service in after for problem in self._put(node, service)]
        for service_name, name in sorted(gone.actions - stay.actions):
            self.actions.remove(node.id, service_name, name)
        for service_name, group, name in sorted(gone.events - stay.events):
            self.events.remove(node.id, service_name, group, name)
        return problems

    def doubt(self, node: NodeRecord) -> None:
        """A node is doubtful, or is not any more: the choice between its endpoints and others."""
        keys = _keys(node, node.info.services)
        for _, name in keys.actions:
            self.actions.doubt(name)
        for _, group, name in keys.events:
            self.events.doubt(group, name)

    def _put(self, node: NodeRecord, service: ServiceInfo) -> list[str]:
        found = [
            self.actions.put(node, service.full_name, action)
            for action in service.actions
            if _is_offered(action, node)
        ]
        found += [
            self.events.put(node, service.full_name, service.group_of(event), event)
            for event in service.events
        ]
        return [problem for problem in found if problem is not None]


def _keys(node: NodeRecord, services: Iterable[ServiceInfo]) -> _Keys:
    keys = _Keys(set(), set())
    for service in services:
        name = service.full_name
        keys.actions.update((name, it.name) for it in service.actions if _is_offered(it, node))
        keys.events.update((name, service.group_of(it), it.name) for it in service.events)
    return keys


def _is_offered(action: ActionInfo, node: NodeRecord) -> bool:
    """Private actions are called by their service alone, protected ones at their node."""
    if node.is_local:
        return action.visibility is not Visibility.PRIVATE
    return action.is_remote
