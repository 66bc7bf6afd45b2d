"""Nodes with mail in processes of their own, as a test sees them, and what their stores tell."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from postroad.durable.store.queries import PAGE_SPAN
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_node import KEYS, WORK
from tests.support.servers.process import free_port
from tests.support.source_tree import ROOT


class MailNode:
    """A node that can be killed and started again, on the same store and port."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.address = ""
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    @property
    def path(self) -> Path:
        """The file of its store."""
        return self._directory / f"{self.name}.db"

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    async def start(self) -> None:
        """Start it, where it was before if it was killed."""
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        port = self.address.rpartition(":")[2] or f"{free_port()}"
        self._process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "tests.support.durable.mail_node",
                self.name,
                self._directory,
                port,
            ),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.address = await self.line()
        assert self.address, f"{self.name} did not start"

    async def line(self) -> str:
        """The next line it prints; empty if it dies instead."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_S)
        return line.decode().strip()

    def tell(self, *words: object) -> None:
        """Have it do something; in vain if it is dead by now."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def meet(self, *peers: MailNode) -> None:
        """Tell it where others are."""
        for peer in peers:
            self.tell("peer", peer.name, peer.address)

    def lose(self, peer: MailNode) -> None:
        """Tell it that nobody knows where another is."""
        self.tell("peer", peer.name, "-")

    async def post(self, peer: MailNode, first: int, count: int, queue: str = WORK) -> bool:
        """Have it post; whether it lived to see that done."""
        self.tell("post", peer.name, queue, first, count)
        return await self.line() == "posted"

    async def limit_disk(self, size: int) -> None:
        """Have none of its files grow beyond a size, from the return on; 0 for as it was."""
        self.tell("disk", size)
        assert await self.line() == "limited"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def dies(self, within_s: float = DEADLINE_S) -> None:
        """Wait until it has killed itself; raises TimeoutError if it lives on."""
        assert await asyncio.wait_for(self.process.wait(), within_s) == -signal.SIGKILL
        self._close()

    async def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        if self._process is not None:
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
            self._close()

    def _close(self) -> None:
        # The pipes' transports are closed by the loop only after this turn.
        self.process._transport.close()  # type: ignore[attr-defined]

    # What its store tells.

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What is committed at the moment."""
        with closing(sqlite3.connect(self.path, timeout=DEADLINE_S)) as connection:
            return connection.execute(statement, parameters).fetchall()

    def sent_to(self, peer: MailNode) -> set[int]:
        rows = self.query("SELECT number FROM sent WHERE peer = ?", peer.name)
        return {number for (number,) in rows}

    def rows_from(self, peer: MailNode, table: str = "handled") -> list[int]:
        """The numbers of a peer's messages, in the order they were handled."""
        statement = f"SELECT number FROM {table} WHERE sender = ? ORDER BY rowid"
        return [number for (number,) in self.query(statement, peer.name)]

    @property
    def waiting(self) -> int:
        """Messages that are anywhere in its store, and alive."""
        ((waiting,),) = self.query(
            f"SELECT (SELECT COALESCE(SUM(last - id % {PAGE_SPAN} + 1), 0) FROM postroad_outbox)"
            " + (SELECT COALESCE(SUM(pending), 0) FROM postroad_inbox)"
            " + (SELECT COUNT(*) FROM postroad_aside)"
        )
        return int(waiting)

    @property
    def dead(self) -> list[tuple[Any, ...]]:
        """Why messages died, and how many for each reason."""
        return self.query("SELECT is_outbound, reason, COUNT(*) FROM postroad_dead GROUP BY 1, 2")


@asynccontextmanager
async def mail_nodes(directory: Path, *names: str) -> AsyncIterator[list[MailNode]]:
    """Nodes that run; killed at the end."""
    nodes = [MailNode(name, directory) for name in names]
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            await node.kill()


async def all_quiet(*nodes: MailNode, after: str = "") -> None:
    """Return when nothing waits anywhere, so that nothing more can happen.

    That may take long on a busy machine; it fails when no fewer wait than DEADLINE_S ago.
    """
    now = asyncio.get_running_loop().time
    fewest, deadline = math.inf, 0.0
    while any((waiting := {node.name: node.waiting for node in nodes}).values()):
        if (count := sum(waiting.values())) < fewest:
            fewest, deadline = count, now() + DEADLINE_S
        assert now() < deadline, f"still waiting: {waiting} {after}"
        await asyncio.sleep(0.01)


def in_order(numbers: list[int]) -> bool:
    """Whether those of each key came in the order they were posted."""
    by_key = [[number for number in numbers if number % KEYS == key] for key in range(KEYS)]
    return all(numbers == sorted(numbers) for numbers in by_key)


def duplicates(numbers: list[int]) -> list[int]:
    """Those that are there more than once."""
    return [number for number, count in Counter(numbers).items() if count > 1]
