"""A broker with durable events, as a process of its own.

`python -m tests.chaos.event_node NAME DIRECTORY PORT GROUPS URLS`

GROUPS are those that it takes part in, with commas between, or "-"; URLS where all brokers are. Its
store is in the directory, with a table of its own: each event leaves a row for each of its groups
in `handled`. Prints its address, then does what the lines it reads say, and ends when its input
does:

peer NAME ADDRESS         says where a peer's mail goes; "-" if nobody knows
arm POINT KIND COUNT      kill this process when the fault point is reached for that time
emit FIRST COUNT          emit events with these numbers, unless that was done already; prints
                          "sent" when they are durable
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

from postroad import MessagingService, run
from postroad.core import faults
from postroad.durable import Mail, SqliteStore, StaticDirectory
from postroad.node import DurableEvents
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.service import Service, event
from postroad.services.transporters.tcp import TcpTransporter
from tests.support.durable.mail_node import CLUSTER, CONFIG, LIMITS, RETRY, Executioner, say

GROUPS = ("mail", "stock")
TABLE = "CREATE TABLE IF NOT EXISTS handled (sender TEXT NOT NULL, number INTEGER NOT NULL)"
AT_ONCE = 5


class Listener(Service):
    """Takes part in one group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._attempts: dict[int, int] = {}

    @property
    def name(self) -> str:  # type: ignore[override]  # Each has a name of its own.
        return self.group

    @event("order.*")
    async def on_order(self, ctx: Context, number: int) -> None:
        """Write it down; the first attempt of every seventh fails after that."""
        statement = "INSERT INTO handled VALUES (?, ?)"
        await ctx.transaction.execute(statement, (self.group, number))
        attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
        if number % 7 == 0 and attempt == 1:
            raise ValueError("the first attempt of every seventh fails")


class Node:
    """What the commands are about."""

    def __init__(self, broker: Broker, directory: StaticDirectory) -> None:
        self._broker = broker
        self._directory = directory
        self._armed = ExitStack()

    async def obey(self, command: str, *words: str) -> None:
        """Do what a line says."""
        match command, words:
            case "peer", (name, address):
                self._directory.set(name, None if address == "-" else address)
            case "arm", (point, kind, count):
                self._armed.enter_context(faults.armed(point, Executioner(kind, int(count))))
            case "emit", (first, count):
                await self._emit_all(range(int(first), int(first) + int(count)))
                say("sent")
            case _:
                raise ValueError(f"no such command: {command} {words}")

    async def _emit_all(self, numbers: range) -> None:
        await asyncio.gather(*(self._emit_in_turn(numbers[it::AT_ONCE]) for it in range(AT_ONCE)))

    async def _emit_in_turn(self, numbers: range) -> None:
        for number in numbers:
            await self._broker.emit(
                "order.created",
                {"number": number},
                groups=GROUPS,
                durable=True,
                idempotency_key=f"{number}",
            )


async def serve(name: str, directory: Path, port: str, groups: str, urls: str) -> None:
    peers = StaticDirectory()
    store = SqliteStore(directory / f"{name}.db")
    service = MessagingService(CLUSTER, name, f"127.0.0.1:{port}", limits=LIMITS)
    mail = Mail(service, store, directory=peers, config=CONFIG)
    transporter = TcpTransporter(urls, host="127.0.0.1", gossip_period_s=0.1)
    broker = Broker(name, transporter=transporter, start_wait_s=0.1, stop_delay_s=0.0)
    if groups != "-":
        broker.add(*map(Listener, groups.split(",")))
    events = DurableEvents(broker, mail, retry=RETRY, concurrency=3)
    async with service, mail:
        async with mail.transaction() as tx:
            await tx.execute(TABLE)
        async with broker, events:
            node = Node(broker, peers)
            say(str(service.address))
            loop = asyncio.get_running_loop()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                await node.obey(*line.split())


if __name__ == "__main__":
    run(serve(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
