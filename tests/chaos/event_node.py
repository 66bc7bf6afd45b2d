"""A broker with durable events, as a process of its own.

`python -m tests.chaos.event_node NAME STORE PORT GROUPS URLS`

STORE is a path or the address of a database, with a table of its own: each event leaves a row for
each of the groups here in `handled`. GROUPS are those that it takes part in, with commas between,
or "-"; URLS where all brokers are. Prints its address, then does what the lines it reads say, and
ends when its input does:

peer NAME ADDRESS         says where a peer's mail goes; "-" if nobody knows
arm POINT KIND COUNT      kill this process when the fault point is reached for that time
emit FIRST COUNT          emit events with these numbers, unless that was done already; prints
                          "sent" when they are durable
"""

from __future__ import annotations

import asyncio
import sys

from postroad import run
from postroad.durable import StaticPeerDirectory
from postroad.node import DurableEvents
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.service import Service, event
from postroad.services.transporters.tcp import TcpTransporter
from tests.support.durable.mail_node import (
    HANDLED,
    RETRY,
    TABLES,
    CommandedNode,
    execute,
    fail_first,
    make_mail,
    make_tables,
    say,
)

GROUPS = ("mail", "stock")
AT_ONCE = 5


class Listener(Service):
    """Takes part in one group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._attempted: set[int] = set()

    @property
    def name(self) -> str:  # type: ignore[override]  # Each has a name of its own.
        return self.group

    @event("order.*")
    async def on_order(self, ctx: Context, number: int) -> None:
        """Write it down; the first attempt of every seventh fails after that."""
        await execute(ctx.transaction, HANDLED, self.group, number)
        fail_first(number, self._attempted)


class Node(CommandedNode):
    """What the commands are about."""

    def __init__(self, broker: Broker, directory: StaticPeerDirectory) -> None:
        super().__init__(directory)
        self._broker = broker

    async def obey(self, command: str, *words: str) -> None:
        match command, words:
            case "emit", (first, count):
                await self._emit_all(range(int(first), int(first) + int(count)))
                say("sent")
            case _:
                await super().obey(command, *words)

    async def _emit_all(self, numbers: range) -> None:
        await asyncio.gather(
            *(self._emit_in_turn(numbers[turn::AT_ONCE]) for turn in range(AT_ONCE))
        )

    async def _emit_in_turn(self, numbers: range) -> None:
        for number in numbers:
            await self._broker.emit(
                "order.created",
                {"number": number},
                groups=GROUPS,
                durable=True,
                idempotency_key=f"{number}",
            )


async def serve(name: str, store: str, port: str, groups: str, urls: str) -> None:
    service, mail, peers = make_mail(name, store, port)
    transporter = TcpTransporter(urls, host="127.0.0.1", gossip_period_s=0.1)
    broker = Broker(name, transporter=transporter, start_wait_s=0.1, stop_delay_s=0.0)
    if groups != "-":
        broker.add(*map(Listener, groups.split(",")))
    events = DurableEvents(broker, mail, retry=RETRY, concurrency=3)
    async with service, mail:
        await make_tables(mail, TABLES)
        async with broker, events:
            say(str(service.address))
            await Node(broker, peers).listen()


def main() -> None:
    run(serve(*sys.argv[1:]))


if __name__ == "__main__":
    main()
