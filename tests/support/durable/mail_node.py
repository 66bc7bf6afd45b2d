"""A node with mail, as a process: `python -m tests.support.durable.mail_node NAME STORE PORT`.

STORE is a path or the address of a database, with tables of the node's own: each message to its
queue `work` leaves a row in `handled`, and has a receipt posted back that leaves a row in
`receipts` there. Prints its address, then does what the lines it reads say, and ends when its
input does:

peer NAME ADDRESS         says where a peer is; "-" if nobody knows
arm POINT KIND COUNT      kill this process when the fault point is reached for that time; of the
                          points of a commit only those count that commit a unit of the kind
post PEER QUEUE FIRST COUNT
                          post messages with these numbers, unless that was done already; prints
                          "posted" when they are durable, or "refused" if the disk is full
disk BYTES                have no file grow beyond that from now on; 0 for as it was; prints
                          "limited" when that holds
load PEER PAUSE           post to the peer from now on, with a pause after each transaction
rest                      stop that; prints "resting" when nothing is being posted any more
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from postroad import run
from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    Message,
    OutgoingMessage,
    PostgresStore,
    RetryPolicy,
    StaticPeerDirectory,
    Store,
    Transaction,
    store_from_url,
)
from postroad.net import Limits, MessagingService

CLUSTER = "chaos"
LIMITS = Limits(heartbeat_interval_s=0.3, heartbeat_timeout_s=1.2, stop_grace_s=1.0)
CONFIG = DurableQueuesConfig(
    # One page in each window, and several windows on their way.
    window_bytes=64,
    windows_max=3,
    bridge_initial_delay_s=0.02,
    bridge_max_delay_s=0.2,
    open_timeout_s=2.0,
    window_timeout_s=3.0,
)
RETRY = RetryPolicy(max_attempts=100, initial_delay_s=0.01, max_delay_s=0.05)

WORK, RECEIPTS = "work", "receipts"
BATCH = 5
"""Messages posted together."""
KEYS = 4
UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)

TABLES = {
    "sent": "peer TEXT NOT NULL, number INTEGER NOT NULL",
    "handled": "sender TEXT NOT NULL, number INTEGER NOT NULL",
    "receipts": "sender TEXT NOT NULL, number INTEGER NOT NULL",
}
HANDLED = "INSERT INTO handled (sender, number) VALUES (?, ?)"


class Dialect:
    """What differs between databases in the statements of these nodes."""

    parameter = "?"
    serial = "INTEGER PRIMARY KEY"


def open_store(location: str) -> Store:
    """The store of this process, at a path or the address of a database."""
    store = store_from_url(location)
    if isinstance(store, PostgresStore):
        Dialect.parameter = "%s"
        Dialect.serial = "BIGINT GENERATED ALWAYS AS IDENTITY"
    return store


async def execute(tx: Transaction, statement: str, *parameters: object) -> list[Any]:
    """Execute a statement with `?` for its parameters."""
    return list(await tx.execute(statement.replace("?", Dialect.parameter), parameters))


async def make_tables(mail: DurableQueues, tables: Mapping[str, str]) -> None:
    """Make tables with these columns, and a column `row` that tells the order of what is there."""
    async with mail.transaction() as tx:
        for name, columns in tables.items():
            serial = f'"row" {Dialect.serial}'
            await execute(tx, f"CREATE TABLE IF NOT EXISTS {name} ({serial}, {columns})")


class Executioner:
    """Kills this process at the n-th time that a fault point is reached."""

    def __init__(self, kind: str, count: int) -> None:
        self._kind = kind
        self._left = count

    def __call__(self, units: Sequence[object] = (), **_details: Any) -> None:
        if self._kind != "-" and self._kind not in {type(unit).__name__ for unit in units}:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class CommandedNode:
    """Does what the lines say that this process reads."""

    def __init__(self, directory: StaticPeerDirectory) -> None:
        self._directory = directory
        self._armed = ExitStack()

    async def listen(self) -> None:
        """Obey until nobody is there any more to say anything."""
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            await self.obey(*line.split())

    async def obey(self, command: str, *words: str) -> None:
        """Do what a line says; those of one kind of node know more commands."""
        match command, words:
            case "peer", (name, address):
                self._directory.set(name, None if address == "-" else address)
            case "arm", (point, kind, count):
                self._armed.enter_context(
                    faults.arm_fault_point(point, Executioner(kind, int(count)))
                )
            case _:
                raise ValueError(f"no such command: {command} {words}")


def fail_first(number: int, attempted: set[int]) -> None:
    """Have the first attempt of every seventh message fail."""
    if number % 7 == 0 and number not in attempted:
        attempted.add(number)
        raise ValueError("the first attempt of every seventh fails")


class Node(CommandedNode):
    """What the commands are about."""

    def __init__(self, mail: DurableQueues, directory: StaticPeerDirectory) -> None:
        super().__init__(directory)
        self._mail = mail
        self._loads: list[asyncio.Task[None]] = []
        self._is_resting = False

    async def start(self) -> None:
        await make_tables(self._mail, TABLES)
        await self._mail.consume(WORK, self._work, concurrency=3, retry=RETRY)
        await self._mail.consume(RECEIPTS, self._file, retry=RETRY)

    async def _work(self, message: Message, tx: Transaction) -> None:
        await execute(tx, HANDLED, message.sender, int(message.body))
        tx.send(RECEIPTS, message.body, to=message.sender)
        if int(message.body) % 7 == 0 and message.attempt == 1:
            raise ValueError("the first attempt of every seventh fails")

    async def _file(self, message: Message, tx: Transaction) -> None:
        statement = "INSERT INTO receipts (sender, number) VALUES (?, ?)"
        await execute(tx, statement, message.sender, int(message.body))

    async def obey(self, command: str, *words: str) -> None:
        match command, words:
            case "post", (peer, queue, first, count):
                await self._post_all(peer, queue, range(int(first), int(first) + int(count)))
            case "disk", (size,):
                limit_files(int(size))
                say("limited")
            case "load", (peer, pause):
                load = self._load(peer, float(pause))
                self._loads.append(asyncio.get_running_loop().create_task(load))
            case "rest", ():
                self._is_resting = True
                await asyncio.gather(*self._loads)
                say("resting")
            case _:
                await super().obey(command, *words)

    async def _post_all(self, peer: str, queue: str, numbers: range) -> None:
        try:
            for start in numbers[::BATCH]:
                await self._post(peer, queue, range(start, start + BATCH))
        except StoreUnavailableError:
            say("refused")
        else:
            say("posted")

    async def _post(self, peer: str, queue: str, numbers: range) -> None:
        """Post some messages together, with a transaction or with idempotency keys."""
        if numbers.start // BATCH % 2:
            await self._mail.send_many(
                OutgoingMessage(
                    to=peer,
                    queue=queue,
                    body=b"%d" % number,
                    key=f"{number % KEYS}",
                    idempotency_key=f"{number}",
                )
                for number in numbers
            )
        else:
            await self._post_once(peer, queue, numbers)

    async def _post_once(self, peer: str, queue: str, numbers: range) -> None:
        async with self._mail.transaction() as tx:
            statement = "SELECT 1 FROM sent WHERE peer = ? AND number = ?"
            if not await execute(tx, statement, peer, numbers.start):
                await self._send(tx, peer, queue, numbers)

    async def _send(self, tx: Transaction, peer: str, queue: str, numbers: range) -> None:
        for number in numbers:
            await execute(tx, "INSERT INTO sent (peer, number) VALUES (?, ?)", peer, number)
            tx.send(queue, b"%d" % number, to=peer, key=f"{number % KEYS}")

    async def _load(self, peer: str, pause_s: float) -> None:
        """Go on after the last number that was sent; every fifth transaction is undone."""
        for turn in itertools.count(1):
            if self._is_resting:
                return
            try:
                async with self._mail.transaction() as tx:
                    rows = await execute(tx, "SELECT max(number) FROM sent WHERE peer = ?", peer)
                    first = (rows[0][0] or 0) + 1
                    await self._send(tx, peer, WORK, range(first, first + BATCH))
                    if turn % 5 == 0:
                        raise InterruptedError
            except InterruptedError:
                continue
            await asyncio.sleep(pause_s)


def make_mail(
    name: str, store: str, port: str
) -> tuple[MessagingService, DurableQueues, StaticPeerDirectory]:
    """What every node has, not started yet."""
    peers = StaticPeerDirectory()
    service = MessagingService(CLUSTER, name, f"127.0.0.1:{port}", limits=LIMITS)
    return service, DurableQueues(service, open_store(store), directory=peers, config=CONFIG), peers


async def serve(name: str, store: str, port: str) -> None:
    service, mail, peers = make_mail(name, store, port)
    async with service, mail:
        node = Node(mail, peers)
        await node.start()
        say(str(service.address))
        await node.listen()


def limit_files(size: int) -> None:
    """Have no file of this process grow beyond a size; 0 for as it was."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size or UNLIMITED[1], UNLIMITED[1]))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    run(serve(*sys.argv[1:]))


if __name__ == "__main__":
    main()
