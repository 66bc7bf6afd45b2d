"""A contender is a pair of processes: a server that announces its address, a client that reports.

Peers of asyncio shape give `listen` and `connect` and get their `serve` and `client` from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from benchmarks.children import Target, running
from benchmarks.machine import stay_on
from benchmarks.messaging.job import Job
from benchmarks.messaging.workloads import Call, measure

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from benchmarks.children import Announce

Listen = Callable[[Job], AbstractAsyncContextManager[str]]
Connect = Callable[[Job, str], AbstractAsyncContextManager[Call]]
T = TypeVar("T")


class Peer(Protocol):
    """The shape of every module in `peers`."""

    @property
    def serve(self) -> Target:
        """`serve(announce, job)`: announces its address and answers until killed."""

    @property
    def client(self) -> Target:
        """`client(announce, job, address)`: announces one sample."""


def sample(peer: Peer, job: Job) -> float:
    """Start both processes, take one measurement, end them."""
    with running(peer.serve, job) as server:
        address = server.receive()
        with running(peer.client, job, address) as client:
            return float(client.receive(60.0 + job.warmup_s + job.seconds))


def run_server(listen: Listen, announce: Announce, job: Job) -> None:
    """Body of a server process."""

    async def serve() -> None:
        async with listen(job) as address:
            announce(address)
            await asyncio.Event().wait()

    if job.cores:
        stay_on(job.cores[0])
    run(serve(), job.loop)


def run_client(connect: Connect, announce: Announce, job: Job, address: str) -> None:
    """Body of a client process."""

    async def work() -> float:
        async with connect(job, address) as call:
            return await measure(call, job)

    if job.cores:
        stay_on(job.cores[1])
    announce(run(work(), job.loop))


def run(main: Coroutine[object, object, T], loop: str) -> T:
    """Run a coroutine on the event loop of that name."""
    with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
        return runner.run(main)


def _loop_factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop
