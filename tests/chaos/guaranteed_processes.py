"""Domains with guaranteed queues in processes of their own, as a test sees them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from postroad.cells import Role
from tests.support.durable.mail_processes import MailNode
from tests.support.servers.process import free_port
from tests.support.source_tree import ROOT


class DomainNode(MailNode):
    """A domain that can be killed and started again, on the same store and port."""

    def __init__(self, name: str, directory: Path, *cores: DomainNode) -> None:
        super().__init__(name, directory)
        self._cores = cores
        self._consumes = False

    async def start(self) -> None:
        """Start it, where it was before if it was killed, and with the cell that it had."""
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        port = self.address.rpartition(":")[2] or f"{free_port()}"
        role = Role.SATELLITE if self._cores else Role.CORE
        cores = [f"{core.name}={core.address}" for core in self._cores]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.guaranteed_node"),
            *(self.name, self._directory, port, role.value),
            *("yes" if self._consumes else "no", *cores),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.address = await self.line()
        assert self.address, f"{self.name} did not start"

    async def send(self, first: int, count: int) -> bool:
        """Have it send; whether it lived to see that done."""
        self.tell("send", first, count)
        return await self.line() == "sent"

    async def consume(self, *, is_wanted: bool = True) -> None:
        """Let the cell that consumes the queue in, or go."""
        self._consumes = is_wanted
        self.tell("consume" if is_wanted else "unconsume")
        assert await self.line() == "done"

    def forget_cell(self) -> None:
        """When it starts the next time, no cell consumes the queue."""
        self._consumes = False

    @property
    def handled(self) -> list[int]:
        """The numbers of the messages it handled, in order."""
        return [number for (number,) in self.query("SELECT number FROM handled ORDER BY rowid")]


@asynccontextmanager
async def domain_nodes(
    directory: Path, core: str, *satellites: str
) -> AsyncIterator[list[DomainNode]]:
    """A core and satellites that run and know each other; killed at the end."""
    centre = DomainNode(core, directory)
    nodes = [centre, *(DomainNode(name, directory, centre) for name in satellites)]
    try:
        await centre.start()
        await asyncio.gather(*(node.start() for node in nodes[1:]))
        for node in nodes:
            introduce(node, nodes)
        yield nodes
    finally:
        for node in nodes:
            await node.kill()


def introduce(node: DomainNode, nodes: list[DomainNode]) -> None:
    """Tell a node where the mail of all others goes."""
    node.meet(*(other for other in nodes if other is not node))
