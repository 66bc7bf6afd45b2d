"""The processes of Postroad: a node with a service, and a node that calls it."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.messaging.processes import run
from benchmarks.services.job import CLIENT, GROUPS, NAMESPACE, SERVER, Job
from postroad.services import Broker, Context, Service, Transporter, action, event

if TYPE_CHECKING:
    from benchmarks.children import Announce


class Maths(Service):
    """The action of the benchmark."""

    name = "math"

    @action
    def add(self, ctx: Context) -> Any:
        """Add two numbers."""
        return ctx.params["a"] + ctx.params["b"]


class Listener(Service):
    """One of ten that hear an event."""

    def __init__(self, number: int, heard: list[int]) -> None:
        self._number = number
        self._heard = heard

    @event("thing.happened")
    def on_thing(self, ctx: Context) -> None:
        """Count."""
        self._heard[self._number] += 1


class Counter(Service):
    """Tells how much was heard."""

    name = "counter"

    def __init__(self, heard: list[int]) -> None:
        self._heard = heard

    @action
    def heard(self, ctx: Context) -> int:
        """All events of all listeners."""
        return sum(self._heard)


def listeners() -> list[Service]:
    """Ten services in groups of their own, and one that tells how much they heard."""
    heard = [0] * GROUPS
    made: list[Service] = [Counter(heard)]
    for number in range(GROUPS):
        kind = type(f"Listener{number}", (Listener,), {"name": f"listener-{number}"})
        made.append(kind(number, heard))
    return made


def transporter_of(job: Job, node_id: str) -> Transporter | str:
    """The transporter that a job asks for."""
    if job.transporter == "nats":
        return f"nats://{job.address}"
    if job.transporter == "tcp":
        from postroad.services.transporters.tcp import TcpTransporter

        server, client = job.ports
        urls = {SERVER: f"127.0.0.1:{server}", CLIENT: f"127.0.0.1:{client}"}
        return TcpTransporter(urls, udp_discovery=False)
    return f"cells://127.0.0.1:{job.ports[0]}/{SERVER}"


def broker_of(job: Job, node_id: str) -> Broker:
    """A node."""
    return Broker(node_id, transporter=transporter_of(job, node_id), namespace=NAMESPACE)


def serve(announce: Announce, job: Job) -> None:
    """Answer until killed."""

    async def run_on() -> None:
        broker = broker_of(job, SERVER)
        broker.add(Maths(), *listeners())
        async with broker:
            announce("ready")
            await asyncio.Event().wait()

    run(run_on(), job.loop)


def client(announce: Announce, job: Job) -> None:
    """Call, or emit, and announce the rate."""

    async def call_on() -> None:
        async with broker_of(job, CLIENT) as broker:
            names = ["math", "counter", *(f"listener-{number}" for number in range(GROUPS))]
            await broker.wait_for_services(names, timeout_s=30.0)
            rate = await (_calls(broker, job) if job.workload == "call" else _events(broker, job))
            announce(rate)

    run(call_on(), job.loop)


async def _calls(broker: Broker, job: Job) -> float:
    completed, is_over = 0, False

    async def work() -> None:
        nonlocal completed
        while not is_over:
            if await broker.call("math.add", {"a": 5, "b": 3}) != 8:
                raise ValueError("wrong result")
            completed += 1

    async with asyncio.TaskGroup() as workers:
        for _ in range(job.in_flight):
            workers.create_task(work())
        await asyncio.sleep(job.warmup_s)
        before, start = completed, perf_counter()
        await asyncio.sleep(job.seconds)
        rate = (completed - before) / (perf_counter() - start)
        is_over = True
    return rate


async def _events(broker: Broker, job: Job) -> float:
    """Events heard in a second: rounds of so many, each of which ends when all were heard."""
    emitted = await _emit_for(broker, job.warmup_s, job.in_flight, 0)
    start = perf_counter()
    after = await _emit_for(broker, job.seconds, job.in_flight, emitted)
    return (after - emitted) * GROUPS / (perf_counter() - start)


async def _emit_for(broker: Broker, seconds: float, batch: int, emitted: int) -> int:
    deadline = perf_counter() + seconds
    while perf_counter() < deadline:
        for _ in range(batch):
            await broker.emit("thing.happened", {"n": emitted})
            emitted += 1
        heard = 0
        while heard < emitted * GROUPS:
            heard = await broker.call("counter.heard")
    return emitted
