"""Puts a run together: domains, a quiet time, trouble, healing, agreement, another quiet time."""

from __future__ import annotations

import asyncio
from random import Random

from postroad.core.errors import MessagingError, RemoteHandlerError
from postroad.testing import SimCluster, Simulation, require
from tests.simulation.cells.books import Sent, Way
from tests.simulation.cells.plan import QUEUES, TOPICS, Work, draw_plan
from tests.simulation.cells.process import Process
from tests.simulation.cells.world import (
    Model,
    World,
    await_agreement,
    check_cores,
    check_leaks,
    differences,
)
from tests.simulation.plans import shortened

_TIMEOUT_S = 5.0
_CALLS = 3
_STREAM = 4
# Domains begin within so many seconds, so that no mailbox has to hold everything at once.
_SPREAD_S = 3.0
# Messages that nobody waits for have arrived by then.
_ARRIVAL_S = 1.5


def check_quiet(world: World) -> None:
    """Have everybody send everything, and see what becomes of it."""
    model = world.model()
    probes = [_Probe(world, model, process) for process in world.running()]
    tasks = [world.sim.spawn(probe.send(), probe.process.node) for probe in probes]
    world.sim.run_until(
        lambda: all(task.done() for task in tasks),
        timeout=_SPREAD_S + _TIMEOUT_S + _ARRIVAL_S,
        description="all calls of a quiet time have ended",
    )
    world.sim.run_for(_ARRIVAL_S)
    for probe in probes:
        probe.check()


class _Probe:
    def __init__(self, world: World, model: Model, process: Process) -> None:
        self.process = process
        self._books = world.books
        self._model = model
        self._rng: Random = world.sim.rng
        self._publications: list[Sent] = []
        self._queued: list[Sent] = []
        self._streams: list[list[Sent]] = []

    # Sending.

    async def send(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, _SPREAD_S))
        assert self.process.talker is not None
        if self._model.is_whole():
            self._publications = [self.process.talker.publish(topic) for topic in TOPICS]
        queues = [queue for queue in QUEUES if self._model.has_consumer(self.process, queue)]
        self._queued = [self.process.talker.send_nowait(queue) for queue in queues]
        self._streams = [self._stream(address) for address in self._addresses()[:2]]
        calls = [self._call(address) for address in (*queues, *self._addresses()[:_CALLS])]
        await asyncio.gather(*calls)

    def _addresses(self) -> list[str]:
        """Cells that handle one message after the other, in any order."""
        addresses = [
            f"{name}@{other.name}"
            for other in self._model.processes
            if self._model.reaches(self.process, other)
            for name, cell in other.cells.items()
            if cell.planned.concurrency == 1 and cell.planned.work is not Work.FAILING
        ]
        return self._rng.sample(addresses, len(addresses))

    def _stream(self, address: str) -> list[Sent]:
        assert self.process.talker is not None
        return [self.process.talker.send_nowait(address) for _ in range(_STREAM)]

    async def _call(self, destination: str) -> None:
        assert self.process.talker is not None
        error = await self.process.talker.call(destination, _TIMEOUT_S, wait=False)
        require(
            error is None or self._is_planned(destination, error),
            f"a call of {self.process} to {destination} failed in a quiet time: {error!r}",
        )

    def _is_planned(self, destination: str, error: MessagingError) -> bool:
        return isinstance(error, RemoteHandlerError) and destination in QUEUES

    # What became of it.

    def check(self) -> None:
        for sent in self._publications:
            expected = sorted(self._model.subscribers(sent.destination))
            require(self._places(sent) == expected, f"{sent} reached {self._places(sent)}")
        for sent in self._queued:
            require(len(self._places(sent)) == 1, f"{sent} reached {self._places(sent)}")
        for stream in self._streams:
            self._check_order(stream)

    def _check_order(self, stream: list[Sent]) -> None:
        for sent in stream:
            require(len(self._places(sent)) == 1, f"{sent} reached {self._places(sent)}")
        order = [self._books.order_of(sent) for sent in stream]
        require(order == sorted(order), f"a stream from {stream[0]} on came in another order")

    def _places(self, sent: Sent) -> list[str]:
        assert sent.way is not Way.CALL
        return sorted(receipt.place for receipt in self._books.handled[sent.number])


# Whatever was sent in times of trouble has come to its end by then.
_CALMING_S = 5.0


def run_cells(simulation: Simulation) -> None:
    """Trouble in between, and all is right before and after it."""
    plan = shortened(simulation, draw_plan(simulation.rng), "trouble_s", "events")
    with SimCluster(simulation) as sim:
        sim.log.add("plan", "seed", f"{sim.seed}: {plan.name}")
        world = World(sim, plan)
        world.start_first()
        _agree(world)
        check_quiet(world)
        world.run_trouble()
        world.heal()
        _agree(world)
        sim.run_for(_CALMING_S)
        check_quiet(world)
        check_cores(world)
        disagreements = differences(world)
        require(
            not disagreements, f"tables changed though nothing happened: {'; '.join(disagreements)}"
        )
        _end(world)


def _agree(world: World) -> None:
    took_s = await_agreement(world)
    world.sim.log.add("test", "agreed", f"after {took_s:.1f} s")


def _end(world: World) -> None:
    for process in world.running():
        if process.talker is not None:
            process.talker.is_talkative = False
    world.sim.run_for(_CALMING_S)
    check_leaks(world)
    for process in world.running():
        world.sim.call_later(world.sim.rng.random(), process.stop)
    world.sim.run_until(
        lambda: not world.running(),
        timeout=_CALMING_S + 1.0,
        description="all domains have stopped",
    )
