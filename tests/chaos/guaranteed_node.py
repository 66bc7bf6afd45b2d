"""A domain with guaranteed queues, as a process of its own.

`python -m tests.chaos.guaranteed_node NAME DIRECTORY PORT ROLE CONSUMES [CORE=ADDRESS ...]`

Its store is in the directory, with a table of its own: each message to the queue `payments` leaves
a row in `handled`. If CONSUMES is "yes", a cell that consumes the queue is there from the start.
Prints its address, then does what the lines it reads say, and ends when its input does:

peer NAME ADDRESS         says where a peer's mail goes; "-" if nobody knows
arm POINT KIND COUNT      kill this process when the fault point is reached for that time
consume, unconsume        let a cell that consumes the queue in, or go; prints "done"
send FIRST COUNT          send messages with these numbers, unless that was done already; prints
                          "sent" when they are durable
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

from postroad import MessagingService, run
from postroad.cells import CellDomain, CellMessage, Role, StaticLocations
from postroad.core import faults
from postroad.durable import Mail, SqliteStore, StaticDirectory
from postroad.node import GuaranteedConfig, GuaranteedQueues
from tests.support.cells.nodes import QUICK
from tests.support.durable.mail_node import CLUSTER, CONFIG, KEYS, LIMITS, RETRY, Executioner, say

QUEUE = "payments"
CELL = "till"
TABLE = "CREATE TABLE IF NOT EXISTS handled (sender TEXT NOT NULL, number INTEGER NOT NULL)"
TIMES = GuaranteedConfig(
    ask_timeout_s=1.0, remember_s=0.05, look_first_s=0.01, look_max_s=0.1, patience_s=0.2
)


class Node:
    """What the commands are about."""

    def __init__(
        self, domain: CellDomain, mail: Mail, queues: GuaranteedQueues, directory: StaticDirectory
    ) -> None:
        self._domain = domain
        self._mail = mail
        self._queues = queues
        self._directory = directory
        self._armed = ExitStack()
        self._attempts: dict[int, int] = {}

    async def start(self, *, consumes: bool) -> None:
        async with self._mail.transaction() as tx:
            await tx.execute(TABLE)
        if consumes:
            self._consume()
        await self._queues.declare(QUEUE, retry=RETRY, concurrency=3)

    def _consume(self) -> None:
        self._domain.add_function(CELL, self._handle, consume=[QUEUE], concurrency=2)

    async def _handle(self, message: CellMessage) -> None:
        number = int(message.body)
        statement = "INSERT INTO handled VALUES (?, ?)"
        assert message.sender is not None
        await message.transaction.execute(statement, (message.sender.domain, number))
        attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
        if number % 7 == 0 and attempt == 1:
            raise ValueError("the first attempt of every seventh fails")

    async def obey(self, command: str, *words: str) -> None:
        """Do what a line says."""
        match command, words:
            case "peer", (name, address):
                self._directory.set(name, None if address == "-" else address)
            case "arm", (point, kind, count):
                self._armed.enter_context(faults.armed(point, Executioner(kind, int(count))))
            case "consume", ():
                self._consume()
                say("done")
            case "unconsume", ():
                await self._domain.remove(CELL)
                say("done")
            case "send", (first, count):
                await self._send_all(range(int(first), int(first) + int(count)))
                say("sent")
            case _:
                raise ValueError(f"no such command: {command} {words}")

    async def _send_all(self, numbers: range) -> None:
        """Several at a time, those of one key in order."""
        keys = [[it for it in numbers if it % KEYS == key] for key in range(KEYS)]
        await asyncio.gather(*map(self._send_in_turn, keys))

    async def _send_in_turn(self, numbers: list[int]) -> None:
        for number in numbers:
            await self._queues.send(
                QUEUE, f"{number}", key=f"{number % KEYS}", idempotency_key=f"{number}"
            )


async def serve(
    name: str, directory: Path, port: str, role: Role, consumes: str, *cores: str
) -> None:
    peers = StaticDirectory()
    found = dict(core.split("=") for core in cores)
    locations = StaticLocations({it: [address] for it, address in found.items()})
    store = SqliteStore(directory / f"{name}.db")
    async with (
        MessagingService(CLUSTER, name, f"127.0.0.1:{port}", limits=LIMITS) as service,
        CellDomain(service, role=role, locations=locations, config=QUICK) as domain,
        Mail(service, store, directory=peers, config=CONFIG) as mail,
        GuaranteedQueues(domain, mail, config=TIMES) as queues,
    ):
        node = Node(domain, mail, queues, peers)
        await node.start(consumes=consumes == "yes")
        say(str(service.address))
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            await node.obey(*line.split())


if __name__ == "__main__":
    run(serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3], Role(sys.argv[4]), *sys.argv[5:]))
