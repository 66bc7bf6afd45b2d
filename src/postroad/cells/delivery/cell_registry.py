"""The registry of a domain: its cells, its gateways to other domains, and its route table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.errors import RouteRejectedError
from postroad.cells.routing.advertisements import NAMES_MAX
from postroad.cells.routing.advertiser import build_advertisement
from postroad.cells.routing.decision import Forward, MessageOrigin
from postroad.cells.routing.decision_cache import RoutingDecisionCache
from postroad.cells.routing.route import Route
from postroad.cells.routing.route_table import RouteTable
from postroad.core.errors import ConfigError

logger = logging.getLogger("postroad.cells")

GATEWAY_PREFIX = "tunnel-"
"""Prefix of the cell names of tunnels."""


def gateway_name(domain: str) -> str:
    return GATEWAY_PREFIX + domain


class ForwardedMessage(NamedTuple):
    """A message handed to a gateway, with all that rerouting it needs."""

    forward: Forward
    envelope: Envelope
    """The message before this domain added itself to its source path."""
    origin: MessageOrigin
    avoid: frozenset[str]
    arrived: float


class Gateway(Protocol):
    """Next hop to another domain."""

    def try_send(self, forwarded: ForwardedMessage) -> bool:
        """Send or queue a message; return False if the queue is full."""
        ...

    def try_send_encoded(self, data: bytes) -> bool:
        """Send an encoded message; return False if it cannot be sent at once."""
        ...


class CellRegistry:
    """Cells, gateways and routes of one domain. Every change is published to its callbacks."""

    def __init__(self, domain: DomainInfo) -> None:
        self.domain = domain
        self.table = RouteTable()
        self.runners: dict[str, CellRunner] = {}
        self.gateways: dict[str, Gateway] = {}
        # Draining cells: only their full address reaches them.
        self.draining: set[str] = set()
        # Cells about to drain or stop: not advertised any more, but still routed to.
        self.withdrawn: set[str] = set()
        self.on_change: list[Callable[[], None]] = []
        # Callbacks of users of the domain; an exception of one is logged.
        self.listeners: list[Callable[[], None]] = []
        self.decision_cache = RoutingDecisionCache(domain)
        self.cache = self.decision_cache.cache
        self._update()

    def change_routes(
        self, *, added: Iterable[Route] = (), deleted: Iterable[Route] = (), is_strict: bool = True
    ) -> None:
        """Change the route table; raises RouteRejectedError and changes nothing if it is invalid.

        With `is_strict=False`, for routes learned from peers, duplicate and missing routes are
        ignored and the size of the own advertisement is not checked.
        """
        table = self.table.changed(added=added, deleted=deleted, is_strict=is_strict)
        if is_strict:
            self._check_advertisable(table)
        self.table = table
        self._update()

    def add_cell(self, runner: CellRunner, routes: Iterable[Route]) -> None:
        """Add a cell and its routes, or nothing; raises RouteRejectedError if one exists."""
        table = self.table.changed(added=routes)
        self._check_advertisable(table)
        self.table = table
        self.runners[runner.name] = runner
        self._update()

    def _check_advertisable(self, table: RouteTable) -> None:
        """Check that the local routes fit into an advertisement; small tables always do."""
        if len(table) > NAMES_MAX:
            try:
                build_advertisement(table, self.domain)
            except ConfigError as error:
                raise RouteRejectedError(
                    f"cannot advertise the routes of domain {self.domain.name}: {error}"
                ) from None

    def remove_cell(self, name: str) -> None:
        self.table = self.table.without_target(self.domain.cell(name))
        self.runners.pop(name, None)
        self.gateways.pop(name, None)
        self.draining.discard(name)
        self.withdrawn.discard(name)
        self._update()

    def withdraw_cell(self, name: str) -> None:
        """Stop advertising a cell; messages that still arrive are delivered."""
        self.withdrawn.add(name)
        self._update()

    def drain_cell(self, name: str) -> None:
        """Route only messages with its full address to a cell."""
        self.draining.add(name)
        self._update()

    def restore_cell(self, name: str) -> None:
        """Undo `withdraw_cell` and `drain_cell`."""
        if name in self.draining or name in self.withdrawn:
            self.draining.discard(name)
            self.withdrawn.discard(name)
            self._update()

    def _update(self) -> None:
        self.decision_cache.update(self.table, frozenset(self.runners), frozenset(self.draining))
        # Cores with a default route; a core that is about to stop has none.
        self.upstream_cores = frozenset(route.target.domain for route in self.table.defaults())
        for callback in self.on_change:
            callback()
        for callback in list(self.listeners):
            try:
                callback()
            except Exception:
                logger.exception(
                    "domain %s: a callback of on_routes_changed failed", self.domain.name
                )
