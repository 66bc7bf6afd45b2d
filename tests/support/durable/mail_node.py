"""A node with mail, as a process: `python -m tests.support.durable.mail_node NAME DIRECTORY PORT`.

Its store is in the directory, with two tables of its own: each message to its queue `work` leaves
a row in `handled`, and has a receipt posted back that leaves a row in `receipts` there. Prints its
address, then does what the lines it reads say, and ends when its input does:

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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from postroad import Limits, MessagingService, run
from postroad.core import faults
from postroad.core.errors import StoreUnavailable
from postroad.durable import (
    Draft,
    Mail,
    MailConfig,
    Message,
    Retry,
    SqliteStore,
    StaticDirectory,
    Transaction,
)

CLUSTER = "chaos"
LIMITS = Limits(heartbeat_interval_s=0.3, heartbeat_timeout_s=1.2, stop_grace_s=1.0)
CONFIG = MailConfig(
    # One page in each window, and several windows on their way.
    window_bytes=64,
    windows_max=3,
    bridge_first_s=0.02,
    bridge_max_s=0.2,
    offer_timeout_s=2.0,
    window_timeout_s=3.0,
)
RETRY = Retry(attempts=100, first_s=0.01, max_s=0.05)

WORK, RECEIPTS = "work", "receipts"
BATCH = 5
"""Messages posted together."""
KEYS = 4
UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)

TABLES = (
    "CREATE TABLE IF NOT EXISTS sent (peer TEXT NOT NULL, number INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS handled (sender TEXT NOT NULL, number INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS receipts (sender TEXT NOT NULL, number INTEGER NOT NULL)",
)


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


class Node:
    """What the commands are about."""

    def __init__(self, mail: Mail, directory: StaticDirectory) -> None:
        self._mail = mail
        self._directory = directory
        self._armed = ExitStack()
        self._loads: list[asyncio.Task[None]] = []
        self._is_resting = False

    async def start(self) -> None:
        async with self._mail.transaction() as tx:
            for table in TABLES:
                await tx.execute(table)
        await self._mail.consume(WORK, self._work, concurrency=3, retry=RETRY)
        await self._mail.consume(RECEIPTS, self._file, retry=RETRY)

    async def _work(self, message: Message, tx: Transaction) -> None:
        number = int(message.body)
        await tx.execute("INSERT INTO handled VALUES (?, ?)", (message.sender, number))
        tx.post(message.sender, RECEIPTS, message.body)
        if number % 7 == 0 and message.attempt == 1:
            raise ValueError("the first attempt of every seventh fails")

    async def _file(self, message: Message, tx: Transaction) -> None:
        await tx.execute("INSERT INTO receipts VALUES (?, ?)", (message.sender, int(message.body)))

    async def obey(self, command: str, *words: str) -> None:
        """Do what a line says."""
        match command, words:
            case "peer", (name, address):
                self._directory.set(name, None if address == "-" else address)
            case "arm", (point, kind, count):
                self._armed.enter_context(faults.armed(point, Executioner(kind, int(count))))
            case "post", (peer, queue, first, count):
                await self._post_all(peer, queue, range(int(first), int(first) + int(count)))
            case "disk", (size,):
                limit = int(size) or UNLIMITED[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, UNLIMITED[1]))
                say("limited")
            case "load", (peer, pause):
                load = self._load(peer, float(pause))
                self._loads.append(asyncio.get_running_loop().create_task(load))
            case "rest", ():
                self._is_resting = True
                await asyncio.gather(*self._loads)
                say("resting")
            case _:
                raise ValueError(f"no such command: {command} {words}")

    async def _post_all(self, peer: str, queue: str, numbers: range) -> None:
        try:
            for start in numbers[::BATCH]:
                await self._post(peer, queue, range(start, start + BATCH))
        except StoreUnavailable:
            say("refused")
        else:
            say("posted")

    async def _post(self, peer: str, queue: str, numbers: range) -> None:
        """Post some messages together, with a transaction or with idempotency keys."""
        if numbers.start // BATCH % 2:
            await self._mail.post_all(
                Draft(
                    peer=peer,
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
            rows = await tx.execute(
                "SELECT 1 FROM sent WHERE peer = ? AND number = ?", (peer, numbers.start)
            )
            if rows:
                return
            await self._send(tx, peer, queue, numbers)

    async def _send(self, tx: Transaction, peer: str, queue: str, numbers: range) -> None:
        for number in numbers:
            await tx.execute("INSERT INTO sent VALUES (?, ?)", (peer, number))
            tx.post(peer, queue, b"%d" % number, key=f"{number % KEYS}")

    async def _load(self, peer: str, pause_s: float) -> None:
        """Go on after the last number that was sent; every fifth transaction is undone."""
        for turn in itertools.count(1):
            if self._is_resting:
                return
            try:
                async with self._mail.transaction() as tx:
                    rows = await tx.execute("SELECT max(number) FROM sent WHERE peer = ?", (peer,))
                    first = (rows[0][0] or 0) + 1
                    await self._send(tx, peer, WORK, range(first, first + BATCH))
                    if turn % 5 == 0:
                        raise InterruptedError
            except InterruptedError:
                continue
            await asyncio.sleep(pause_s)


async def serve(name: str, directory: Path, port: str) -> None:
    peers = StaticDirectory()
    async with MessagingService(CLUSTER, name, f"127.0.0.1:{port}", limits=LIMITS) as service:
        store = SqliteStore(directory / f"{name}.db")
        async with Mail(service, store, directory=peers, config=CONFIG) as mail:
            node = Node(mail, peers)
            await node.start()
            say(str(service.address))
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                await node.obey(*line.split())


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
