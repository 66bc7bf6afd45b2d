"""What a domain has: cells, gateways to other domains, and the routes to them."""

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
"""What the names of tunnels begin with, as cells of their domain."""


def gateway_name(domain: str) -> str:
    """The name that the tunnel to a domain has as a cell of this one."""
    return GATEWAY_PREFIX + domain


class ForwardedMessage(NamedTuple):
    """A message handed to a gateway, and what it takes to try another way."""

    forward: Forward
    envelope: Envelope
    """As it was before it was to leave."""
    origin: MessageOrigin
    avoid: frozenset[str]
    arrived: float


class Gateway(Protocol):
    """A way to another domain."""

    def try_send(self, forwarded: ForwardedMessage) -> bool:
        """Take a message; False if too many wait already."""
        ...


class CellRegistry:
    """The cells and routes of one domain. Whoever depends on them is told of every change."""

    def __init__(self, domain: DomainInfo) -> None:
        self.domain = domain
        self.table = RouteTable()
        self.runners: dict[str, CellRunner] = {}
        self.gateways: dict[str, Gateway] = {}
        # Cells that are draining: reached by their full address alone.
        self.draining: set[str] = set()
        # Cells that are about to drain or stop: offered to nobody, and reached as before.
        self.withdrawn: set[str] = set()
        self.on_change: list[Callable[[], None]] = []
        # Users of the domain, who may fail.
        self.listeners: list[Callable[[], None]] = []
        self.decision_cache = RoutingDecisionCache(domain)
        self._update()

    def change_routes(
        self, *, added: Iterable[Route] = (), deleted: Iterable[Route] = (), is_strict: bool = True
    ) -> None:
        """Change the table; raises RouteRejectedError, and nothing is changed, if that cannot be.

        Unless it is strict, as for routes of others: what this domain offers is not checked then.
        """
        table = self.table.changed(added=added, deleted=deleted, is_strict=is_strict)
        if is_strict:
            self._check_advertisable(table)
        self.table = table
        self._update()

    def add_cell(self, runner: CellRunner, routes: Iterable[Route]) -> None:
        """Let a cell be reached, by its name and by these routes."""
        table = self.table.changed(added=routes)
        self._check_advertisable(table)
        self.table = table
        self.runners[runner.name] = runner
        self._update()

    def _check_advertisable(self, table: RouteTable) -> None:
        """Refuse what other domains could not be told of; looks closer at large tables alone."""
        if len(table) > NAMES_MAX:
            try:
                build_advertisement(table, self.domain)
            except ConfigError as error:
                raise RouteRejectedError(
                    f"domain {self.domain.name} offers too much: {error}"
                ) from None

    def remove_cell(self, name: str) -> None:
        """Let a cell be reached no more."""
        self.table = self.table.without_target(self.domain.cell(name))
        self.runners.pop(name, None)
        self.gateways.pop(name, None)
        self.draining.discard(name)
        self.withdrawn.discard(name)
        self._update()

    def withdraw_cell(self, name: str) -> None:
        """Offer a cell to nobody any more; what still comes is delivered."""
        self.withdrawn.add(name)
        self._update()

    def drain_cell(self, name: str) -> None:
        """Let a cell be reached by its full address alone."""
        self.draining.add(name)
        self._update()

    def restore_cell(self, name: str) -> None:
        """Offer a cell again, and let it be reached by its name."""
        if name in self.draining or name in self.withdrawn:
            self.draining.discard(name)
            self.withdrawn.discard(name)
            self._update()

    def _update(self) -> None:
        self.decision_cache.update(self.table, frozenset(self.runners), frozenset(self.draining))
        # The cores that everything may be sent to; one that is about to stop is none of them.
        self.upstream_cores = frozenset(route.target.domain for route in self.table.defaults())
        for callback in self.on_change:
            callback()
        for callback in list(self.listeners):
            try:
                callback()
            except Exception:
                logger.exception("%s: a listener to routes failed", self.domain.name)
