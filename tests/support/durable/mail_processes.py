"""Nodes with mail in processes of their own, as a test sees them, and what their stores tell."""

from __future__ import annotations

import asyncio
import math
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from postroad.durable.store.tables.queries import BATCH_ID_SPAN
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_node import KEYS, WORK
from tests.support.servers.postgres import fresh_database
from tests.support.servers.process import free_port
from tests.support.warm_parent import Process, spawn

SQLITE, POSTGRES = STORES = ("sqlite", "postgres")
"""Where nodes keep their mail: each in a file, or all in a database."""
READER = "test"
"""What the sessions of tests are called in a server, and those of nodes are not."""


class MailNode:
    """A node that can be killed and started again, on the same store and port.

    Attributes:
        module: the program it runs.
        dsn: of the database its store is in, in a schema of its name; if empty, it is in a file.
        is_cold: whether its processes begin as an interpreter does, and not as a fork.
    """

    module = "tests.support.durable.mail_node"

    def __init__(self, name: str, directory: Path, *, dsn: str = "", is_cold: bool = False) -> None:
        self.name = name
        self.address = ""
        self.dsn = dsn
        self.is_cold = is_cold
        self.directory = directory
        self._process: Process | None = None
        self._reading: psycopg.Connection[tuple[Any, ...]] | None = None

    @property
    def store(self) -> str:
        """Where its store is: a path, or the address of a database."""
        path = self.directory / f"{self.name}.db"
        return f"{self.dsn}?schema={self.name}" if self.dsn else str(path)

    @property
    def process(self) -> Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def arguments(self) -> Sequence[str]:
        """More of what its program wants to know."""
        return ()

    async def start(self) -> None:
        """Start it, where it was before if it was killed."""
        await self._spawn(*self.arguments)
        self.address = await self.line()
        assert self.address, f"{self.name} did not start"

    async def _spawn(self, *arguments: str) -> None:
        if self._process is not None:
            self._close()
        port = self.address.rpartition(":")[2] or f"{free_port()}"
        self._process = await spawn(
            self.module, self.name, self.store, port, *arguments, is_cold=self.is_cold
        )

    async def line(self) -> str:
        """The next line it prints; empty if it dies instead."""
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_S)
        return line.decode().strip()

    def tell(self, *words: object) -> None:
        """Have it do something; in vain if it is dead by now."""
        if not self.process.stdin.is_closing():
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
        """Wait until it has killed itself."""
        assert await asyncio.wait_for(self.process.wait(), within_s) == -signal.SIGKILL
        self._close()

    @property
    def is_dead(self) -> bool:
        return self._process is None or self.process.returncode is not None

    async def stop(self) -> None:
        """End it the soft way."""
        self.process.stdin.close()
        assert await self.ends() == 0

    async def ends(self) -> int:
        """Wait until it has ended by itself; what with."""
        status = await asyncio.wait_for(self.process.wait(), DEADLINE_S)
        self._close()
        return status

    async def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        if self._process is not None:
            self.process.kill()
            await self.process.wait()
            self._close()

    def _close(self) -> None:
        self.process.close()
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    # What its store tells.

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What is committed at the moment."""
        if not self.dsn:
            with closing(sqlite3.connect(self.store, timeout=DEADLINE_S)) as connection:
                rows = connection.execute(statement, parameters).fetchall()
                connection.commit()
                return rows
        if self._reading is None:
            options = f"-c search_path={self.name} -c default_transaction_read_only=off"
            self._reading = psycopg.connect(
                self.dsn, autocommit=True, options=options, application_name=READER
            )
        translated = statement.replace("%", "%%").replace("?", "%s").encode()
        cursor = self._reading.execute(translated, parameters)
        return [] if cursor.description is None else cursor.fetchall()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection to its store that commits at the end."""
        if self.dsn:
            options = f"-c search_path={self.name}"
            with psycopg.connect(self.dsn, options=options) as connection:
                yield connection
            return
        with closing(sqlite3.connect(self.store, timeout=DEADLINE_S)) as file, file:
            yield file

    def sent_to(self, peer: MailNode) -> set[int]:
        rows = self.query("SELECT number FROM sent WHERE peer = ?", peer.name)
        return {number for (number,) in rows}

    def rows_from(self, peer: MailNode, table: str = "handled") -> list[int]:
        """The numbers of a peer's messages, in the order they were handled."""
        statement = f'SELECT number FROM {table} WHERE sender = ? ORDER BY "row"'
        return [number for (number,) in self.query(statement, peer.name)]

    @property
    def waiting(self) -> int:
        """Messages that are anywhere in its store, and alive."""
        ((waiting,),) = self.query(
            f"SELECT (SELECT COALESCE(SUM(last - id % {BATCH_ID_SPAN} + 1), 0)"
            " FROM postroad_outbox)"
            " + (SELECT COALESCE(SUM(pending), 0) FROM postroad_inbox)"
            " + (SELECT COUNT(*) FROM postroad_aside)"
        )
        return int(waiting)

    @property
    def dead(self) -> list[tuple[Any, ...]]:
        """Why messages died, and how many for each reason."""
        return self.query("SELECT is_outbound, reason, COUNT(*) FROM postroad_dead GROUP BY 1, 2")


NodeT = TypeVar("NodeT", bound=MailNode)


def introduce(*nodes: MailNode, to: Sequence[MailNode] = ()) -> None:
    """Tell nodes where all others are: those in `to`, or one another."""
    for node in nodes:
        node.meet(*(other for other in to or nodes if other is not node))


@contextmanager
def database(store: str) -> Iterator[str]:
    """The DSN of an empty database for nodes; nothing for those with files."""
    if store == SQLITE:
        yield ""
    else:
        with fresh_database() as dsn:
            yield dsn


@asynccontextmanager
async def mail_nodes(
    directory: Path, *names: str, store: str = SQLITE, is_cold: bool = False
) -> AsyncIterator[list[MailNode]]:
    """Nodes that run; killed at the end."""
    with database(store) as dsn:
        nodes = [MailNode(name, directory, dsn=dsn, is_cold=is_cold) for name in names]
        async with running(nodes):
            yield nodes


@asynccontextmanager
async def running(nodes: list[NodeT]) -> AsyncIterator[list[NodeT]]:
    """Start nodes, and kill them at the end."""
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            await node.kill()


async def all_quiet(*nodes: MailNode, after: str = "") -> None:
    """Return when nothing waits anywhere, so that nothing more can happen."""
    await nothing_left(lambda: {node.name: node.waiting for node in nodes}, after)


async def nothing_left(count: Callable[[], dict[str, int]], after: str = "") -> None:
    """Return when all counts are zero.

    That may take long on a busy machine; it fails when no less is left than DEADLINE_S ago.
    """
    now = asyncio.get_running_loop().time
    fewest, deadline = math.inf, 0.0
    while total := sum((counts := count()).values()):
        if total < fewest:
            fewest, deadline = total, now() + DEADLINE_S
        assert now() < deadline, f"still left: {counts} {after}"
        await asyncio.sleep(0.01)


def in_order(numbers: list[int]) -> bool:
    """Whether those of each key came in the order they were posted."""
    by_key = [[number for number in numbers if number % KEYS == key] for key in range(KEYS)]
    return all(numbers == sorted(numbers) for numbers in by_key)


def duplicates(numbers: list[int]) -> list[int]:
    """Those that are there more than once."""
    return [number for number, count in Counter(numbers).items() if count > 1]
