"""The actions of the cluster, by name, and the endpoints of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from postroad.core.errors import ConfigError

from .balancing import StrategyMaker
from .endpoints import EndpointList, Host, Strategy
from .schema import ActionInfo, EventInfo

EMPTY_LISTS_MAX = 1_000
"""Names that nobody offers any more are remembered, to tell what is gone from what never was."""


class ActionCatalog:
    """All known actions.

    Args:
        strategies: makes the strategy of each list.
        prefers_local: whether an endpoint at this node wins.
    """

    def __init__(self, strategies: StrategyMaker, *, prefers_local: bool) -> None:
        self._strategies = strategies
        self._prefers_local = prefers_local
        self._lists: dict[str, EndpointList[ActionInfo]] = {}
        self._empty: set[str] = set()

    def __iter__(self) -> Iterator[EndpointList[ActionInfo]]:
        return iter(self._lists.values())

    def get(self, name: str) -> EndpointList[ActionInfo] | None:
        """The endpoints of an action; None for a name that was never heard of."""
        return self._lists.get(name)

    def put(self, node: Host, service: str, action: ActionInfo) -> str | None:
        """Add or renew an endpoint; gives what was wrong with its definition, if anything was."""
        found = self._lists.get(action.name)
        problem = None
        if not found:
            strategy, problem = strategy_of(action, self._strategies)
            found = EndpointList(action.name, "", strategy, prefers_local=self._prefers_local)
            self._lists[action.name] = found
            self._empty.discard(action.name)
        found.put(node, service, action)
        return problem

    def remove(self, node_id: str, service: str, name: str) -> None:
        """Take an endpoint out."""
        found = self._lists.get(name)
        if found is not None:
            found.remove(node_id, service)
            if not found:
                self._empty.add(name)
                self._prune()

    def doubt(self, name: str) -> None:
        """A node that offers it is doubtful, or is not any more."""
        if (found := self._lists.get(name)) is not None:
            found.doubt()

    def _prune(self) -> None:
        if len(self._empty) > EMPTY_LISTS_MAX:
            for name in self._empty:
                del self._lists[name]
            self._empty.clear()


def strategy_of(
    info: ActionInfo | EventInfo, strategies: StrategyMaker
) -> tuple[Strategy, str | None]:
    """The strategy a definition asks for, or the usual one and what was wrong with the wish."""
    said = info.definition.get("strategy")
    options = info.definition.get("strategyOptions")
    if isinstance(said, Mapping):
        said = said.get("type")
    if said is None:
        return strategies.default(), None
    try:
        return strategies.make(_checked(said, str), _checked(options, Mapping)), None
    except ConfigError as error:
        return strategies.default(), f"{info.name}: {error}"


def _checked(said: Any, kind: type) -> Any:
    if said is None or isinstance(said, kind):
        return said
    raise ConfigError(f"a strategy is told by its name and an object of options, not {said!r:.60}")
