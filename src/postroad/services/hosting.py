"""The services of a broker, from being added to being stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from postroad.core.errors import ConfigError

from .engine import Engine
from .local_services import LocalService, ServiceBuilder
from .middleware import Middleware
from .running import all_idle
from .service import Service
from .transit import logger

if TYPE_CHECKING:
    from .broker import Broker


class Hosting:
    """Adds, starts and stops services.

    Args:
        broker: whose services they are.
        builder: makes them ready.
        middlewares: hear of what happens to them.
    """

    def __init__(
        self, broker: Broker, builder: ServiceBuilder, middlewares: Sequence[Middleware]
    ) -> None:
        self._broker = broker
        self._builder = builder
        self._middlewares = middlewares
        self._services: dict[str, LocalService] = {}
        self._started: dict[str, LocalService] = {}

    def __iter__(self) -> Iterator[LocalService]:
        return iter(self._services.values())

    def __len__(self) -> int:
        return len(self._services)

    @property
    def running(self) -> int:
        """Calls of all services that run now."""
        return sum(it.activity.running for it in self)

    def add(self, service: Service) -> LocalService:
        """Make a service ready to be started; raises ConfigError if it makes no sense."""
        owner = getattr(service, "broker", self._broker)
        if owner is not self._broker and owner.is_running:
            raise ConfigError(f"{service} belongs to {owner}; make another one for this broker")
        local = self._builder.build(service)
        name = local.info.full_name
        if name in self._services:
            raise ConfigError(f"this node has a service {name!r} already")
        service.broker = self._broker
        service.created()
        self._services[name] = local
        for middleware in self._middlewares:
            middleware.service_created(service)
        return local

    async def start_all(self, engine: Engine) -> None:
        """Start all services at the same time; if one fails, the others are broken off."""
        starting = [asyncio.ensure_future(self._start(it, engine)) for it in self]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for task in starting:
                task.cancel()
            await asyncio.wait(starting)
            raise

    async def launch(self, service: Service, engine: Engine) -> None:
        """Add a service to a broker that runs, and start it; if that fails, it is not there."""
        local = self.add(service)
        try:
            await self._start(local, engine)
        except BaseException:
            await self.remove(local.info.full_name, engine)
            raise

    async def remove(self, full_name: str, engine: Engine | None) -> None:
        """Stop a service and forget it."""
        local = self._services.pop(full_name, None)
        if local is not None and engine is not None:
            await self._stop(local, engine, wait_s=self._broker.config.stop_timeout_s)

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no call runs, at most so long; whether that came."""
        return await all_idle((it.activity for it in self), timeout_s)

    async def stop_all(self, engine: Engine) -> None:
        """Stop all services that were started, the last first; calls had their time to end."""
        for local in reversed([*self._started.values()]):
            await self._stop(local, engine, wait_s=0)

    async def _start(self, local: LocalService, engine: Engine) -> None:
        service = local.service
        for middleware in self._middlewares:
            await middleware.service_starting(service)
        if local.dependencies:
            if self._needs_others(local, engine):
                # Whoever has them may wait for what is here.
                await engine.open()
            timeout_s = service.dependency_timeout_s
            await self._broker.wait_for_services(local.dependencies, timeout_s=timeout_s)
        await service.started()
        self._started[local.info.full_name] = local
        await engine.offer(local)
        for middleware in self._middlewares:
            await middleware.service_started(service)

    def _needs_others(self, local: LocalService, engine: Engine) -> bool:
        """Whether a service waits for one that other nodes must have, and none has it yet."""
        return any(
            it not in self._services and not engine.registry.has_service(it)
            for it in local.dependencies
        )

    async def _stop(self, local: LocalService, engine: Engine, *, wait_s: float) -> None:
        if self._started.pop(local.info.full_name, None) is None:
            return
        service = local.service
        for middleware in self._middlewares:
            await quietly(middleware.service_stopping, service)
        engine.withhold(local.info.full_name)
        # Calls that came just before that have a task, which now begins and is counted.
        await asyncio.sleep(0)
        await all_idle([local.activity], wait_s)
        try:
            async with asyncio.timeout(self._broker.config.stop_timeout_s):
                await service.stopped()
        except Exception:
            logger.exception("%s did not stop in good order", service)
        for middleware in self._middlewares:
            await quietly(middleware.service_stopped, service)


async def quietly(hook: Callable[..., Awaitable[None]], *args: object) -> None:
    """Call a hook of what stops anyway: that it fails must not stop the stopping."""
    try:
        await hook(*args)
    except Exception:
        logger.exception("%s failed", getattr(hook, "__qualname__", hook))
