"""Where a job is kept account of: what is delivered to a runner, and what comes back from it."""

from __future__ import annotations

import enum
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from postroad.durable.store import Store
from postroad.durable.store.database import Database
from postroad.durable.store.ledger import Ledger

from .delivered import Delivered, deliver_again
from .job import Task
from .media.medium import InputMedium, OutputMedium, Place, Slice, Written
from .pen import Pen, create_tables
from .program import Program
from .records import Delivery, FailedRoot, State
from .window_keeper import WindowKeeper
from .windows import Delta

logger = logging.getLogger("postroad.pipeline")

# Of what may be pending, so much at most is taken up by segments that come again.
_REPLAYS_SHARE = 0.2
# A delivery is late only if so many other batches were settled since it was admitted.
_BATCHES_BETWEEN = 3


class Outcome(msgspec.Struct):
    """What came of a batch."""

    deliveries: list[Delivery]
    failed: list[FailedRoot] = []
    staged: list[tuple[str, Place]] = []
    """Output tasks, with what is to be published."""
    written: dict[str, list[Written]] = {}
    """What outputs write in the transaction itself."""
    delta: Delta = msgspec.field(default_factory=Delta)
    """What it adds to windows."""


class Counts(msgspec.Struct):
    """What happened since this process began."""

    delivered: int = 0
    acked: int = 0
    failed: int = 0
    batches: int = 0


class Settled(enum.Enum):
    """What came of settling a batch."""

    NOW = enum.auto()
    BEFORE = enum.auto()
    """It was settled already."""
    TOO_LATE = enum.auto()
    """Some of it was delivered again since, and will be settled there."""


class Desk:
    """The account of one job. One process has it.

    Args:
        program: the job.
        store: where the account is kept; open.
        inputs: by the name of their task.
        outputs: the same.
    """

    def __init__(
        self,
        program: Program,
        store: Store,
        inputs: Mapping[str, InputMedium],
        outputs: Mapping[str, OutputMedium],
    ) -> None:
        self._program = program
        self._store = store
        self._inputs = inputs
        self._outputs = outputs
        self._job = program.job.name
        self._tasks = program.graph.tasks
        self.counts = Counts()
        self._windows = WindowKeeper(program)
        # Inputs that had nothing more the last time they were asked.
        self._silent: set[str] = set()
        # Whether something that was settled could not be published.
        self._has_unpublished = False

    async def open(self) -> None:
        """Get everything ready, and publish what was settled and not published before a crash."""
        await self._store.write(self._open)
        for source in self._inputs.values():
            await source.open()
        for target in self._outputs.values():
            await target.open()
        await self._publish()

    def _open(self, ledger: Ledger) -> None:
        create_tables(self._store.types, ledger.database)
        self._pen(ledger.database).open()

    async def close(self) -> None:
        """Let the inputs and outputs go."""
        for source in self._inputs.values():
            await source.close()
        for target in self._outputs.values():
            await target.close()

    def _pen(self, database: Database) -> Pen:
        return Pen(database, self._job)

    # Delivering.

    async def admit(self) -> list[Delivery]:
        """What is delivered now: what is late, what comes again, what is new."""
        if self._has_unpublished:
            await self._publish()
        deliveries = await self._store.write(self._admit_old)
        for name, medium in self._inputs.items():
            deliveries += await self._admit_new(self._tasks[name], medium)
        self.counts.delivered += sum(
            it.segments for it in deliveries if it.generation == 0 and it.place is not None
        )
        return deliveries

    def _admit_old(self, ledger: Ledger) -> list[Delivery]:
        pen, now_ms = self._pen(ledger.database), _now_ms()
        self._windows.on_time(pen, now_ms)
        _, settled = pen.counters()
        deliveries: list[Delivery] = []
        for name in (*self._inputs, *sorted(self._program.windowed)):
            before_ms = now_ms - round(self._tasks[name].pending_timeout_s * 1000)
            deliveries += pen.expire(name, before_ms, settled - _BATCHES_BETWEEN, now_ms)
            room = max(round(self._tasks[name].max_pending * _REPLAYS_SHARE), 1)
            deliveries += pen.admit_due(name, now_ms, room - pen.pending_again(name))
        return deliveries

    async def _admit_new(self, task: Task, medium: InputMedium) -> list[Delivery]:
        pending = await self._store.read(lambda it: self._pen(it).pending(task.name))
        room = min(task.max_pending - pending, task.batch_size)
        if room <= 0:
            return []
        after = await self._store.read(lambda it: self._pen(it).position(task.name))
        slices = await medium.cut(after, room)
        if not slices:
            self._silent.add(task.name)
            return []
        self._silent.discard(task.name)
        return await self._store.write(lambda ledger: self._admit_slices(ledger, task, slices))

    def _admit_slices(self, ledger: Ledger, task: Task, slices: Sequence[Slice]) -> list[Delivery]:
        pen, now_ms = self._pen(ledger.database), _now_ms()
        return [pen.admit_slice(task.name, it.place, it.count, it.end, now_ms) for it in slices]

    async def read(self, delivery: Delivery) -> Iterator[Delivered]:
        """The roots of a delivery: the same whenever it is read."""
        if delivery.place is not None:
            return self._read_slice(delivery, delivery.place)
        roots = await self._store.read(lambda it: self._pen(it).roots_of(delivery.number))
        return (deliver_again(root) for root in roots)

    def _read_slice(self, delivery: Delivery, place: Place) -> Iterator[Delivered]:
        bits = self._program.bits
        for item in self._inputs[delivery.task].read(place):
            root = bits.root(delivery.task, item.position)
            yield Delivered(root, delivery.task, delivery.generation, item.segment)

    async def unsettled(self) -> list[Delivery]:
        """What was delivered and not settled, in order."""
        return await self._store.read(lambda it: self._pen(it).deliveries())

    # Settling.

    async def settle(self, run: str, batch: int, outcome: Outcome) -> Settled:
        """Account for a batch, once, and publish what it wrote."""
        settled = await self._store.write(lambda ledger: self._settle(ledger, run, batch, outcome))
        if settled is Settled.NOW:
            self._count(outcome)
            places = [(it.task, it.place) for it in outcome.deliveries if it.place is not None]
            for task, place in places:
                await self._inputs[task].on_settled([place])
        elif settled is Settled.TOO_LATE:
            for name, place in outcome.staged:
                await self._outputs[name].discard([place])
        await self._publish()
        return settled

    def _settle(self, ledger: Ledger, run: str, batch: int, outcome: Outcome) -> Settled:
        pen, now_ms = self._pen(ledger.database), _now_ms()
        if pen.last_batch(run) >= batch:
            return Settled.BEFORE
        if not all(pen.has(it) for it in outcome.deliveries):
            # Some of it was delivered again meanwhile, and is accounted for there.
            return Settled.TOO_LATE
        pen.note_batch(run, batch)
        # Before they are settled, because those that failed before have a history there.
        for failed in outcome.failed:
            pen.put_back(failed, self._tasks[failed.task].retry, now_ms, random.random())
        for it in outcome.deliveries:
            pen.settle(it)
            if it.place is not None:
                self._inputs[it.task].settle(ledger, it.place)
        for name, written in outcome.written.items():
            self._outputs[name].settle(ledger, written)
        for name, place in outcome.staged:
            pen.note_publication(name, place)
        if outcome.delta.windows:
            self._windows.apply(pen, outcome.delta, now_ms)
        return Settled.NOW

    def _count(self, outcome: Outcome) -> None:
        self.counts.batches += 1
        self.counts.failed += len(outcome.failed)
        self.counts.acked += sum(it.segments for it in outcome.deliveries) - len(outcome.failed)

    async def _publish(self) -> None:
        """Publish everything that was settled, as far as that is possible now."""
        for id, name, place in await self._store.read(lambda it: self._pen(it).publications()):
            try:
                await self._outputs[name].publish([place])
            except OSError as error:
                logger.warning("output %r cannot be published to: %s", name, error)
                self._has_unpublished = True
                return
            await self._store.write(
                lambda ledger, id=id: self._pen(ledger.database).forget_publications(id)  # type: ignore[misc]
            )
        self._has_unpublished = False

    # Looks.

    async def next_due_s(self) -> float | None:
        """Seconds until the next root comes again; None if none waits."""
        due_ms = await self._store.read(lambda it: self._pen(it).next_due_ms())
        return None if due_ms is None else max(due_ms - _now_ms(), 0) / 1000

    async def is_drained(self) -> bool:
        """Whether bounded inputs gave all they had, and everything is acknowledged or dead."""
        if any(not it.is_bounded for it in self._inputs.values()):
            return False
        if not self._silent >= set(self._inputs) or not await self._store.read(self._is_empty):
            return False
        # What windows emit at the end is more to do.
        return not await self._store.write(
            lambda ledger: self._windows.on_drained(self._pen(ledger.database), _now_ms())
        )

    def _is_empty(self, database: Database) -> bool:
        pen = self._pen(database)
        return not (pen.deliveries() or pen.count(State.WAITING) or pen.publications())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
