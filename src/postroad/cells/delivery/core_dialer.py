"""Dials cores, again and again, for as long as somebody tells of them and a while longer.

A satellite dials every core; a core dials those whose name is smaller, and is dialed by the others.
A tunnel that works is left alone whatever becomes of the core's registration.
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
    """Keeps tunnels to cores open.

    Args:
        service: what dials.
        own: this domain.
        config: the times.
        accept: takes a tunnel in use.
        has_link: whether a domain has a tunnel already.
        cores: all that may be cores, others are not dialed; None for whoever says so.
    """

    def __init__(
        self,
        service: MessagingService,
        own: DomainInfo,
        config: CellsConfig,
        *,
        accept: Callable[[Tunnel], DomainLink],
        has_link: Callable[[str], bool],
        cores: frozenset[str] | None = None,
    ) -> None:
        self._service = service
        self._own = own
        self._config = config
        self._accept = accept
        self._has_link = has_link
        self._allowed = cores
        self._cores: dict[str, CoreLocation] = {}
        # When a core was told of for the last time, of those that are told of no more.
        self._missing_since: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Why a core could not be reached, the last time.
        self.failures: dict[str, str] = {}

    @property
    def cores(self) -> Mapping[str, CoreLocation]:
        """The cores known, those included that nobody tells of any more."""
        return self._cores

    def unlisted_s(self, name: str) -> float | None:
        """How long nobody has told of a core any more; None if somebody does."""
        since = self._missing_since.get(name)
        return None if since is None else self._loop.time() - since

    def set_cores(self, cores: Mapping[str, CoreLocation]) -> None:
        """These are all cores that somebody tells of now."""
        now = self._loop.time()
        cores = {name: it for name, it in cores.items() if self._may_be_core(name, now)}
        for name in self._cores.keys() - cores.keys():
            self._missing_since.setdefault(name, now)
            if name not in self._tasks and self._is_forgotten(name):
                self._forget(name)
        for name, location in cores.items():
            self._missing_since.pop(name, None)
            self._cores[name] = location
            if self.should_dial(name) and name not in self._tasks:
                self._tasks[name] = self._loop.create_task(
                    self._keep_dialing(name), name=f"postroad dial {name}"
                )

    def _may_be_core(self, name: str, now: float) -> bool:
        if self._allowed is None or name in self._allowed:
            return True
        self._log.log(
            name, now, "%s: %s says it is a core, which may be none", self._own.name, name
        )
        return False

    def should_dial(self, name: str) -> bool:
        """Whether it is this domain that dials."""
        return self._own.role is Role.SATELLITE or name < self._own.name

    async def close(self) -> None:
        """Dial no more."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_dialing(self, name: str) -> None:
        attempt = 0
        while not self._is_forgotten(name):
            tunnel = await self._dial(name)
            if tunnel is not None:
                self.failures.pop(name, None)
                opened = self._loop.time()
                await tunnel.wait_closed()
                if self._loop.time() - opened > self._config.redial_max_s:
                    attempt = 0
            attempt += 1
            await asyncio.sleep(
                backoff(
                    attempt,
                    first_s=self._config.redial_first_s,
                    max_s=self._config.redial_max_s,
                    chance=random.random(),
                )
            )
        del self._tasks[name]
        self._forget(name)

    def _forget(self, name: str) -> None:
        logger.info("%s: core %s is forgotten", self._own.name, name)
        del self._cores[name], self._missing_since[name]
        self.failures.pop(name, None)

    def _is_forgotten(self, name: str) -> bool:
        since = self._missing_since.get(name)
        is_old = since is not None and self._loop.time() - since > self._config.forget_core_s
        return is_old and not self._has_link(name)

    async def _dial(self, name: str) -> Tunnel | None:
        """Try every endpoint of a core."""
        for address in self._cores[name].endpoints:
            try:
                return await self._service.tunnels.open(address, self._accept, peer=name)
            except Exception as error:
                if not isinstance(error, PostroadError):
                    # A defect here must not cost this domain its core for ever.
                    logger.exception("%s: dialing core %s failed", self._own.name, name)
                self.failures[name] = str(error)
                self._log.log(
                    name,
                    self._loop.time(),
                    "%s: no tunnel to core %s at %s: %s",
                    self._own.name,
                    name,
                    address,
                    error,
                )
        return None
