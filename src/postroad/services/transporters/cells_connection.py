"""Whether a domain reaches others, and whether they know what it offers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from postroad.cells import CellDomain, Role, StaticCoreDiscovery
from postroad.core import PostroadError

# How long to wait for all cores to know what is offered here, and how often to look whether at
# least one does.
_SETTLE_S = 0.5


class Connection:
    """What a node has in place of a connection to a server.

    A core is connected as long as it runs, since it is others who come to it. So is a satellite
    whose user names no core. Any other satellite is when one of its cores can be reached.

    Args:
        domain: it is running.
        on_up: told when there is a way to others, and they know what is offered here.
        on_down: told that there is none any more, and why.
    """

    def __init__(
        self, domain: CellDomain, *, on_up: Callable[[], None], on_down: Callable[[str], None]
    ) -> None:
        self._domain = domain
        self._on_up = on_up
        self._on_down = on_down
        self._rising: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._was_up = asyncio.Event()
        self.is_up = False

    def open(self) -> None:
        """Begin to look; raises NotRunningError if the domain does not run."""
        self._unwatch = self._domain.on_routes_changed(self._look)
        self._look()

    async def wait_up(self) -> None:
        """Return once it was up."""
        await self._was_up.wait()

    def end(self, reason: str) -> None:
        """It is down for good: the domain stops."""
        self._stop_looking()
        self._lower(reason)

    async def close(self) -> None:
        """Look no more, and tell nobody."""
        self._stop_looking()
        self.is_up = False
        rising, self._rising = self._rising, None
        if rising is not None:
            rising.cancel()
            await asyncio.wait([rising])

    def explain(self) -> str:
        """Why it is not up."""
        failures = [
            f"; {core}: {why}" for core, why in sorted(self._domain.dialer.failures.items())
        ]
        return "cells: no core can be reached" + "".join(failures)

    def _stop_looking(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _lower(self, reason: str) -> None:
        if self._rising is not None:
            self._rising.cancel()
            self._rising = None
        if self.is_up:
            self.is_up = False
            self._on_down(reason)

    def _look(self) -> None:
        if not self._has_way():
            self._lower(self.explain())
        elif not self.is_up and self._rising is None:
            self._rising = asyncio.get_running_loop().create_task(self._rise())

    def _has_way(self) -> bool:
        domain = self._domain
        is_alone = (
            isinstance(domain.core_discovery, StaticCoreDiscovery) and not domain.dialer.cores
        )
        return domain.identity.role is Role.CORE or is_alone or bool(domain.table.defaults())

    async def _rise(self) -> None:
        try:
            while not (await self._domain.wait_routes_acknowledged(_SETTLE_S) or self._is_known()):
                continue
        except PostroadError:
            # The domain stops, which is told in another way.
            return
        self._rising = None
        self.is_up = True
        self._was_up.set()
        self._on_up()

    def _is_known(self) -> bool:
        """Whether a core that everything may go through knows what is offered here."""
        behind = self._domain.propagator.advertiser.unacknowledged()
        upstream = {route.target.domain for route in self._domain.table.defaults()}
        return not upstream or not upstream.issubset(behind)
