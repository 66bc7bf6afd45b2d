"""A contender is a sender and a receiver, each a process, and a server where it needs one.

The two do what they are ordered over a pipe, transfer by transfer, so that one pair can warm up,
be measured and be watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.children import SPAWN, Child, running
from benchmarks.messaging.processes import run

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.children import Announce
    from benchmarks.durable.job import Job

TRANSFER_TIMEOUT_S = 120.0
WARMUP_MESSAGES = 2_000

Transfer = Callable[[int], Awaitable[None]]


class Side(NamedTuple):
    """A sender or a receiver that is ready."""

    # Where the sender finds the receiver or what is between them; that of a sender is not used.
    address: str
    # A sender's returns when that many further messages are confirmed, a receiver's when they are
    # handled and acknowledged.
    transfer: Transfer


Serve = Callable[[Path], AbstractContextManager[str]]
Part = Callable[["Job", str], AbstractAsyncContextManager[Side]]


@contextmanager
def no_server(_directory: Path) -> Iterator[str]:
    """For contenders whose processes talk to each other."""
    yield ""


@dataclass(frozen=True)
class Peer:
    """What a contender consists of.

    `receive` is told the address that `serve` yields, and `send` the one that the receiver names.
    All three are functions of a module, or partials of them: they travel to other processes.
    """

    receive: Part
    send: Part
    serve: Serve = no_server


class Party:
    """One of the two processes, as the harness sees it."""

    def __init__(self, child: Child, orders: Connection) -> None:
        self._child = child
        self._orders = orders
        self.address: str = child.receive()

    def order(self, count: int) -> None:
        """Have it transfer as many messages."""
        self._orders.send(count)

    def finish(self) -> tuple[float, float]:
        """When it began with what was ordered, and when it ended."""
        began, ended = self._child.receive(TRANSFER_TIMEOUT_S)
        return began, ended


class Line:
    """A sender and a receiver that are connected."""

    def __init__(self, sender: Party, receiver: Party) -> None:
        self._sender = sender
        self._receiver = receiver

    def transfer(self, count: int) -> float:
        """Seconds from the first publish until all is confirmed, handled and acknowledged."""
        self._receiver.order(count)
        self._sender.order(count)
        began, confirmed = self._sender.finish()
        _, acknowledged = self._receiver.finish()
        return max(confirmed, acknowledged) - began

    def warm_up(self, seconds: float) -> int:
        """How many messages take about that long, judged by the second of two small transfers."""
        self.transfer(WARMUP_MESSAGES)
        rate = WARMUP_MESSAGES / self.transfer(WARMUP_MESSAGES)
        return max(WARMUP_MESSAGES, int(rate * seconds))


@contextmanager
def open_line(peer: Peer, job: Job) -> Iterator[Line]:
    """Start all processes of a contender on an empty directory, and end them."""
    with TemporaryDirectory(prefix="line-", dir=job.scratch) as scratch:
        job = replace(job, scratch=Path(scratch))
        with (
            peer.serve(job.scratch) as address,
            _party(peer.receive, job, address) as receiver,
            _party(peer.send, job, receiver.address) as sender,
        ):
            yield Line(sender, receiver)


@contextmanager
def _party(part: Part, job: Job, address: str) -> Iterator[Party]:
    theirs, ours = SPAWN.Pipe(duplex=False)
    with theirs, ours, running(run_part, part, job, address, theirs) as child:
        yield Party(child, ours)


def run_part(announce: Announce, part: Part, job: Job, address: str, orders: Connection) -> None:
    """Body of both processes; the clock they announce is the same in all processes."""

    async def work() -> None:
        async with part(job, address) as side:
            announce(side.address)
            while True:
                # In a thread, so that the connection is looked after meanwhile.
                count = await asyncio.to_thread(orders.recv)
                began = monotonic()
                await side.transfer(count)
                announce((began, monotonic()))

    run(work(), job.loop)
