"""One machine of the simulation: its disk, and the process with a mail that runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import TypeAlias

from postroad.cluster import ClusterAgent, StaticDiscovery
from postroad.core.errors import StoreError, TransactionAbortedError
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    MemoryDisk,
    MemoryStore,
    StaticPeerDirectory,
)
from postroad.net import MessagingService
from postroad.testing import SimCluster, SimNode

CLUSTER = "simulated"
PORT = 7000
# Until the mail is started again whose store could not be opened or failed.
_AGAIN_S = 0.5

Application: TypeAlias = Callable[[DurableQueues], Awaitable[None]]
"""What runs as long as a mail does."""


class Machine:
    """A node whose mail outlives its processes.

    Args:
        host: the name of the machine, if it is another one than the node's.
        disk: one that exists already.
        has_bridge: whether its mail carries itself what it has for others.

    Attributes:
        disk: where the mail is kept.
        mail: that of the running process, once it has started.
    """

    def __init__(
        self,
        sim: SimCluster,
        name: str,
        config: DurableQueuesConfig,
        accept: tuple[str, ...],
        application: Application,
        *,
        host: str | None = None,
        disk: MemoryDisk | None = None,
        has_bridge: bool = True,
    ) -> None:
        self.name = name
        self.node = sim.add(host or name, self._run)
        self.disk = disk or MemoryDisk(Random(f"{sim.seed}/mail of {name}"))
        self._has_bridge = has_bridge
        self.mail: DurableQueues | None = None
        # Where peers are; None if agents find out.
        self.directory: StaticPeerDirectory | None = StaticPeerDirectory()
        self.seeds: list[str] = []
        self._is_stopping = False
        self._config = config
        self._accept = accept
        self._application = application

    @property
    def address(self) -> str:
        return f"{self.node.host}:{PORT}"

    @property
    def is_ready(self) -> bool:
        """Whether its process runs, and shall go on, with a mail that was started."""
        return self.node.is_running and not self._is_stopping and self.mail is not None

    # The process.

    async def _run(self, node: SimNode) -> None:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(
                MessagingService(CLUSTER, self.name, self.address)
            )
            host: ClusterAgent | MessagingService = service
            if self.directory is None:
                agent = ClusterAgent(service, StaticDiscovery(self.seeds))
                host = await stack.enter_async_context(agent)
            while True:
                try:
                    await self._serve(host)
                except (StoreError, TransactionAbortedError):
                    await asyncio.sleep(_AGAIN_S)

    async def _serve(self, host: ClusterAgent | MessagingService) -> None:
        mail = DurableQueues(
            host,
            MemoryStore(self.disk),
            directory=self.directory,
            config=self._config,
            accepted_queues=self._accept,
            bridge=self._has_bridge,
        )
        async with mail:
            self.mail = mail
            await self._application(mail)

    # What befalls it.

    def start(self) -> None:
        if not self.node.is_running:
            self.mail = None
            self._is_stopping = False
            if self._has_bridge:
                # One that was asked twice to end may have left without closing anything.
                self.disk.crash()
            self.node.start()

    def stop(self) -> None:
        self._is_stopping = True
        self.node.resume()
        self.node.stop()

    def kill(self) -> None:
        self.node.kill()
        self.disk.crash()

    def lose_power(self) -> None:
        self.node.lose_power()
        self.disk.crash()
