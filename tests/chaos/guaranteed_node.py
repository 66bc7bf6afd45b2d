"""A domain with guaranteed queues, as a process of its own.

`python -m tests.chaos.guaranteed_node NAME STORE PORT ROLE CONSUMES [CORE=ADDRESS ...]`

STORE is a path or the address of a database, with a table of its own: each message to the queue
`payments` leaves a row in `handled`. If CONSUMES is "yes", a cell that consumes the queue is there
from the start. Prints its address, then does what the lines it reads say, and ends when its input
does:

peer NAME ADDRESS         says where a peer's mail goes; "-" if nobody knows
arm POINT KIND COUNT      kill this process when the fault point is reached for that time
consume, unconsume        let a cell that consumes the queue in, or go; prints "done"
send FIRST COUNT          send messages with these numbers, unless that was done already; prints
                          "sent" when they are durable
"""

from __future__ import annotations

import asyncio
import sys

from postroad import run
from postroad.cells import CellDomain, CellMessage, Role, StaticCoreDiscovery
from postroad.durable import DurableQueues, StaticPeerDirectory
from postroad.node import GuaranteedConfig, GuaranteedQueues
from tests.support.cells.nodes import QUICK
from tests.support.durable.mail_node import (
    HANDLED,
    KEYS,
    RETRY,
    TABLES,
    CommandedNode,
    execute,
    fail_first,
    make_mail,
    make_tables,
    say,
)

QUEUE = "payments"
CELL = "till"
TIMES = GuaranteedConfig(
    ask_timeout_s=1.0, remember_s=0.05, look_first_s=0.01, look_max_s=0.1, patience_s=0.2
)


class Node(CommandedNode):
    """What the commands are about."""

    def __init__(
        self,
        domain: CellDomain,
        mail: DurableQueues,
        queues: GuaranteedQueues,
        directory: StaticPeerDirectory,
    ) -> None:
        super().__init__(directory)
        self._domain = domain
        self._mail = mail
        self._queues = queues
        self._attempted: set[int] = set()

    async def start(self, *, consumes: bool) -> None:
        await make_tables(self._mail, TABLES)
        if consumes:
            self._consume()
        await self._queues.declare(QUEUE, retry=RETRY, concurrency=3)

    def _consume(self) -> None:
        self._domain.add_function(CELL, self._handle, consume=[QUEUE], concurrency=2)

    async def _handle(self, message: CellMessage) -> None:
        number = int(message.body)
        assert message.sender is not None
        await execute(message.transaction, HANDLED, message.sender.domain, number)
        fail_first(number, self._attempted)

    async def obey(self, command: str, *words: str) -> None:
        match command, words:
            case "consume", ():
                self._consume()
                say("done")
            case "unconsume", ():
                await self._domain.remove_cell(CELL)
                say("done")
            case "send", (first, count):
                await self._send_all(range(int(first), int(first) + int(count)))
                say("sent")
            case _:
                await super().obey(command, *words)

    async def _send_all(self, numbers: range) -> None:
        """Several at a time, those of one key in order."""
        keys = [[number for number in numbers if number % KEYS == key] for key in range(KEYS)]
        await asyncio.gather(*map(self._send_in_turn, keys))

    async def _send_in_turn(self, numbers: list[int]) -> None:
        for number in numbers:
            await self._queues.send(
                QUEUE, f"{number}", key=f"{number % KEYS}", idempotency_key=f"{number}"
            )


async def serve(name: str, store: str, port: str, role: str, consumes: str, *cores: str) -> None:
    service, mail, peers = make_mail(name, store, port)
    addresses = dict(core.split("=") for core in cores)
    locations = StaticCoreDiscovery({core: [address] for core, address in addresses.items()})
    async with (
        service,
        CellDomain(service, role=Role(role), core_discovery=locations, config=QUICK) as domain,
        mail,
        GuaranteedQueues(domain, mail, config=TIMES) as queues,
    ):
        node = Node(domain, mail, queues, peers)
        await node.start(consumes=consumes == "yes")
        say(str(service.address))
        await node.listen()


def main() -> None:
    run(serve(*sys.argv[1:]))


if __name__ == "__main__":
    main()
