"""Dialer of cores: keeps a tunnel to each core that core discovery lists, and for a while after.

A satellite dials every core; a core dials the cores with a smaller name, and is dialed by the
others. An open tunnel stays open whatever happens to the registration of the core.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from postroad.cells.addresses import DomainInfo, Role
from postroad.cells.config import CellsConfig
from postroad.cells.core_discovery import CoreLocation
from postroad.cells.delivery.domain_links import DomainLink
from postroad.core import PostroadError, ThrottledLogger
from postroad.core.timing import backoff
from postroad.net import MessagingService, Tunnel

logger = logging.getLogger("postroad.cells")

_WARN_INTERVAL_S = 30.0


class CoreDialer:
    """Keeper of the tunnels to core domains."""

    def __init__(
        self,
        service: MessagingService,
        local: DomainInfo,
        config: CellsConfig,
        *,
        accept: Callable[[Tunnel], DomainLink],
        has_link: Callable[[str], bool],
        cores: frozenset[str] | None = None,
    ) -> None:
        self._service = service
        self._local = local
        self._config = config
        self._accept = accept
        self._has_link = has_link
        # Names of the domains that may be cores; others are not dialed. None allows all.
        self._allowed = cores
        # Locations of the cores, those included that are unlisted but not expired.
        self.cores: dict[str, CoreLocation] = {}
        # When core discovery stopped listing a core, for those that it lists no more.
        self._unlisted_since: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Error of the last dial of each core.
        self.failures: dict[str, str] = {}

    def unlisted_s(self, name: str) -> float | None:
        """Return for how long core discovery has not listed a core; None if it lists it."""
        since = self._unlisted_since.get(name)
        return None if since is None else self._loop.time() - since

    def set_cores(self, cores: Mapping[str, CoreLocation]) -> None:
        """Set the cores that core discovery lists now, and dial the new ones."""
        now = self._loop.time()
        cores = {name: location for name, location in cores.items() if self._may_be_core(name, now)}
        for name in self.cores.keys() - cores.keys():
            self._unlisted_since.setdefault(name, now)
            if name not in self._tasks and self._is_core_expired(name):
                self._remove_core(name)
        for name, location in cores.items():
            self._unlisted_since.pop(name, None)
            self.cores[name] = location
            if self.should_dial(name) and name not in self._tasks:
                self._tasks[name] = self._loop.create_task(
                    self._dial_until_expired(name), name=f"postroad dial {name}"
                )

    def _may_be_core(self, name: str, now: float) -> bool:
        if self._allowed is None or name in self._allowed:
            return True
        self._log.log(
            name,
            now,
            "domain %s: core %s not dialed: its name is not in the setting cores",
            self._local.name,
            name,
        )
        return False

    def should_dial(self, name: str) -> bool:
        """Return whether this domain dials the core, not the core this domain."""
        return self._local.role is Role.SATELLITE or name < self._local.name

    async def close(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _dial_until_expired(self, name: str) -> None:
        attempt = 0
        while not self._is_core_expired(name):
            tunnel = await self._dial(name)
            if tunnel is not None:
                self.failures.pop(name, None)
                opened = self._loop.time()
                await tunnel.wait_closed()
                if self._loop.time() - opened > self._config.redial_max_delay_s:
                    attempt = 0
            attempt += 1
            await asyncio.sleep(
                backoff(
                    attempt,
                    initial_delay_s=self._config.redial_initial_delay_s,
                    max_delay_s=self._config.redial_max_delay_s,
                    jitter=random.random(),
                )
            )
        del self._tasks[name]
        self._remove_core(name)

    def _remove_core(self, name: str) -> None:
        logger.info("domain %s: core %s expired", self._local.name, name)
        del self.cores[name], self._unlisted_since[name]
        self.failures.pop(name, None)

    def _is_core_expired(self, name: str) -> bool:
        since = self._unlisted_since.get(name)
        is_old = since is not None and self._loop.time() - since > self._config.core_expiry_s
        return is_old and not self._has_link(name)

    async def _dial(self, name: str) -> Tunnel | None:
        """Open a tunnel to the first endpoint of a core that can be reached, or return None."""
        for address in self.cores[name].endpoints:
            try:
                return await self._service.tunnels.open(address, self._accept, peer=name)
            except Exception as error:
                if not isinstance(error, PostroadError):
                    # A defect must not end the redialing of this core for ever.
                    logger.exception("domain %s: dial of core %s raised", self._local.name, name)
                self.failures[name] = str(error)
                self._log.log(
                    name,
                    self._loop.time(),
                    "domain %s: cannot open a tunnel to core %s at %s: %s",
                    self._local.name,
                    name,
                    address,
                    error,
                )
        return None
