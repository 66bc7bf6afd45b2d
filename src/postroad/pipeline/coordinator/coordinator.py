"""Dispatches input, commits batches and schedules retries of a job."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack

from postroad.core import tracing
from postroad.core.errors import UsageError
from postroad.core.tracing import SpanContext
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    OutputConnector,
    Position,
    RawRecords,
)
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult, PendingWrite
from postroad.pipeline.coordinator.batch_spans import BatchSpans
from postroad.pipeline.coordinator.committer import OutputCommitter, writer_id_prefix
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.progress import (
    JobCounters,
    JobStatus,
    PendingAcks,
    add_counts,
    read_job_status,
)
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    InputDelivery,
    RetryRoot,
    RootState,
)
from postroad.pipeline.coordinator.schema import create_tables
from postroad.pipeline.coordinator.spark_windows import SparkWindows
from postroad.pipeline.coordinator.state_store import StateStore, create_state_table
from postroad.pipeline.coordinator.window_deltas import ResultsInput
from postroad.pipeline.coordinator.window_store import WindowStore, read_late
from postroad.pipeline.job import Task

logger = logging.getLogger("postroad.pipeline")

# Of what may be pending, so much at most is taken up by segments that come again.
_REPLAYS_SHARE = 0.2
# A delivery is late only if so many other batches were settled since it was admitted.
_BATCHES_BETWEEN = 3
# More splits than cores even out that some take longer, and that an input may have less.
_SPLITS_PER_CORE = 2
# While nothing new comes: how often to see to windows and to what is late.
_LOOK_S = 0.5


class JobCoordinator:
    """The account of one job. One process has it.

    Args:
        program: the job.
        store: where the account is kept; open.
        inputs: by the name of their task.
        outputs: the same.
    """

    def __init__(
        self,
        program: CompiledJob,
        store: Store,
        inputs: Mapping[str, InputConnector],
        outputs: Mapping[str, OutputConnector],
    ) -> None:
        self._program = program
        self._store = store
        self._inputs = inputs
        self._outputs = outputs
        self._job = program.job.name
        self._tasks = program.graph.tasks
        self.counts = JobCounters()
        self._windows = WindowStore(program)
        self.spark_windows = SparkWindows(program, store, self._windows)
        self.sources = dict.fromkeys(program.windowed_tasks, ResultsInput()) | dict(inputs)
        """Everything that has splits."""
        # Inputs that had nothing more the last time they were asked.
        self._silent: set[str] = set()
        # What decides about failures, by the task that segments come in by.
        self._policies = {name: task.retry for name, task in self._tasks.items()}
        for name in program.graph.inputs[:1]:
            # Only inputs say how often to try: what outputs refuse came by one of them.
            self._policies |= dict.fromkeys(program.graph.outputs, self._policies[name])
        self._acks = PendingAcks(self.counts)
        self._publisher = OutputCommitter(
            store, self._job, outputs, self._warn_once, self._policies, self._acks
        )
        # What comes next is planned while something else is settled.
        self._planning = asyncio.Lock()
        # What is being settled must not be thrown away meanwhile.
        self._settling = asyncio.Lock()
        self._complaints: dict[str, str | None] = {}
        self._spans = BatchSpans(self._job)
        # What was delivered again since the last admission.
        self._again: list[InputDelivery] = []
        self.is_open = False
        """Whether it has an account to look at."""
        self.parallelism = 1
        """How many parts of a batch are worked on at once."""

    async def open(self, staged: Sequence[tuple[str, Committable]] = ()) -> None:
        """Get everything ready, and publish what was settled and not published before a crash.

        Args:
            staged: what was staged already and will be settled; anything else is left over.
        """
        try:
            await self._open_all(staged)
        except BaseException:
            await self.close()
            raise

    async def _open_all(self, staged: Sequence[tuple[str, Committable]]) -> None:
        await self._store.write(self._open)
        unsettled = await self.uncommitted()
        for name, source in self._inputs.items():
            source.restore(await self._store.read(lambda it: self._pen(it).input_state(name)))  # noqa: B023
            await source.open([it.position for it in unsettled if it.task == name and it.position])
        publications = await self._store.read(lambda it: self._pen(it).pending_commits())
        wanted = [*staged, *((task, it) for _, task, it in publications)]
        for name, target in self._outputs.items():
            prefix = writer_id_prefix(self._job, name)
            await target.open(prefix, [it for task, it in wanted if task == name])
        await self._publisher.commit()
        self.is_open = True

    def _open(self, ledger: StoreTables) -> None:
        create_tables(self._store.column_types, ledger.database)
        create_state_table(self._store.column_types, ledger.database)
        self._pen(ledger.database).open()

    async def close(self) -> None:
        """Let the inputs and outputs go."""
        self.is_open = False
        # Each of them, also if another raises.
        async with AsyncExitStack() as closing:
            for source in self._inputs.values():
                closing.push_async_callback(source.close)
            for target in self._outputs.values():
                closing.push_async_callback(target.close)
            await self._publisher.close()

    def _pen(self, database: StoreConnection) -> JobStore:
        return JobStore(database, self._job)

    # Delivering.

    async def next_deliveries(self) -> list[InputDelivery]:
        """What is delivered now: what is late, what comes again, what is new."""
        if self._publisher.has_uncommitted and not await self._publisher.commit():
            return []
        await self._publisher.retry_rejected()
        deliveries, self._again = self._again, []
        if await self._store.read(self._has_old):
            deliveries += await self._store.write(self._admit_old)
        if await asyncio.to_thread(self._has_room):
            for name, connector in self._inputs.items():
                deliveries += await self._admit_new(self._tasks[name], connector)
        for it in deliveries:
            if it.generation > 0:
                self.counts.replayed += it.segments
            elif it.position is not None and it.task in self._inputs:
                self.counts.delivered += it.segments
            elif it.task not in self._program.windowed_tasks:
                # What windows emit comes that way too, for the first time.
                self.counts.replayed += it.segments
        if deliveries and tracing.tracer is not None:
            self._spans.begin(self._store.owner, self._contexts(deliveries))
        return deliveries

    def _contexts(self, deliveries: Iterable[InputDelivery]) -> Iterator[SpanContext]:
        """The spans that what was delivered belongs to, as far as inputs know."""
        for it in deliveries:
            if it.position is not None:
                yield from self.sources[it.task].span_contexts(it.position)

    def _has_room(self) -> bool:
        for name, target in self._outputs.items():
            try:
                target.check_capacity()
            except OSError as error:
                self._warn_once(name, f"nothing new is read, output {name!r} has no room: {error}")
                return False
            self._warn_once(name, None)
        return True

    def _has_old(self, database: StoreConnection) -> bool:
        """Whether there may be something late or due: to find out is cheaper than to commit."""
        if self._program.windowed_tasks:
            return True
        pen, now_ms = self._pen(database), _now_ms()
        due_ms, longest_s = pen.next_due_ms(), max(it.retry.max_s for it in self._tasks.values())
        # What is due later than any pause is long was noted by another clock.
        if due_ms is not None and not now_ms < due_ms <= now_ms + 1000 * longest_s + 1:
            return True
        timeouts = {name: self._tasks[name].pending_timeout_s * 1000 for name in self._inputs}
        return any(it.started_ms + timeouts.get(it.task, 0.0) < now_ms for it in pen.deliveries())

    def _admit_old(self, ledger: StoreTables) -> list[InputDelivery]:
        pen, now_ms = self._pen(ledger.database), _now_ms()
        self._windows.fire_timers(pen, now_ms)
        _, settled = pen.counters()
        deliveries: list[InputDelivery] = []
        refusing = [name for name, it in self._outputs.items() if it.is_external]
        for name in (*self._inputs, *sorted(self._program.windowed_tasks), *refusing):
            before_ms = now_ms - round(self._tasks[name].pending_timeout_s * 1000)
            deliveries += pen.redeliver_expired(name, before_ms, settled - _BATCHES_BETWEEN, now_ms)
            room = max(round(self._tasks[name].max_pending * _REPLAYS_SHARE), 1)
            room -= pen.pending(name, only_retries=True)
            latest_ms = now_ms + round(1000 * self._tasks[name].retry.max_s) + 1
            deliveries += pen.take_due_retries(name, now_ms, room, latest_ms)
            if name in self._program.windowed_tasks:
                room = self._tasks[name].max_pending - pen.pending(name)
                deliveries += self.spark_windows.take_results(pen, name, room, now_ms)
        return deliveries

    async def _admit_new(self, task: Task, connector: InputConnector) -> list[InputDelivery]:
        pending = await self._store.read(lambda it: self._pen(it).pending(task.name))
        # What one batch has leaves room for the next, which is read while it is worked on.
        wanted = min(
            task.batch_size * self.parallelism, max(task.max_pending // 2, task.batch_size)
        )
        room = min(task.max_pending - pending, wanted)
        if room <= 0:
            return []
        parts = _SPLITS_PER_CORE * self.parallelism if self.parallelism > 1 else 1
        connector.split_segments_max = -(-room // parts)
        after = await self._store.read(lambda it: self._pen(it).position(task.name))
        try:
            async with self._planning:
                slices = await connector.plan_splits(after, room)
        except OSError as error:
            self._warn_once(task.name, f"input {task.name!r} cannot be read: {error}")
            return []
        self._warn_once(task.name, None)
        if not slices:
            self._silent.add(task.name)
            return []
        self._silent.discard(task.name)

        def admit(ledger: StoreTables) -> list[InputDelivery]:
            pen, now_ms = self._pen(ledger.database), _now_ms()
            return [pen.add_split(task.name, it, now_ms) for it in slices]

        return await self._store.write(admit)

    async def read_chunks(self, delivery: InputDelivery) -> list[RawRecords]:
        """What a slice has, as the input has it."""
        place = delivery.position
        if place is None:
            raise UsageError(f"delivery {delivery.number} is no slice")
        connector = self.sources[delivery.task]
        return await asyncio.to_thread(lambda: list(connector.read(place)))

    async def retry_roots(self, number: int, after: int | None, limit: int) -> list[RetryRoot]:
        """Some of the roots that come again with a delivery; `after` is the last one before."""

        def read(database: StoreConnection) -> list[RetryRoot]:
            roots = self._pen(database).delivery_roots(number, after, limit)
            return [RetryRoot(it.root, it.generation, it.segment, it.published) for it in roots]

        return await self._store.read(read)

    async def uncommitted(self, after: int = 0, upto: int | None = None) -> list[InputDelivery]:
        """What was delivered and not settled, in order."""
        return await self._store.read(lambda it: self._pen(it).deliveries(after, upto))

    async def redeliver_lost(self, upto: int) -> None:
        """Deliver again what is not settled, up to a number: nobody will settle it any more."""

        def redeliver(ledger: StoreTables) -> list[InputDelivery]:
            pen = self._pen(ledger.database)
            return [pen.redeliver(it, _now_ms()) for it in pen.deliveries(0, upto)]

        if await self.uncommitted(0, upto):
            self._again += await self._store.write(redeliver)

    async def committed_offset(self) -> int:
        """The number before the first delivery that is not settled."""
        unsettled = await self.uncommitted()
        return unsettled[0].number - 1 if unsettled else await self.last_delivery()

    async def poll_after(self, number: int, wait_s: float) -> int:
        """Admit what there is; returns the number of the last delivery, when that is above the
        given one or when the time is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            await self.next_deliveries()
            latest = await self.last_delivery()
            left_s = deadline_s - loop.time()
            if latest > number or left_s <= 0:
                return latest
            await self.wait(min(left_s, _LOOK_S))

    async def read_states(self, task: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The states that functions of groups keep for some keys of a task."""
        return await self._store.read(lambda it: StateStore(it, self._job).read(task, keys))

    async def last_delivery(self) -> int:
        """The number of the last delivery."""
        return (await self._store.read(lambda it: self._pen(it).counters()))[0]

    # Settling.

    async def commit_batch(self, run: str, batch: int, outcome: BatchResult) -> CommitResult:
        """Account for a batch, once, and publish what it wrote."""
        async with self._settling:
            settled, again, writes = await self._store.write(
                lambda ledger: self._settle(ledger, run, batch, outcome)
            )
        self._again += again
        if settled is CommitResult.NOW:
            self._count(outcome, writes)
            for it in outcome.deliveries:
                if it.position is not None:
                    await self._tell_settled(it.task, it.position)
        else:
            await self.abort_outputs(outcome.staged)
        await self._publisher.commit()
        await self._publisher.on_settled()
        segments, failed = sum(it.segments for it in outcome.deliveries), len(outcome.failed)
        result = settled.name.lower()
        self._spans.end(self._store.owner, batch, segments=segments, failed=failed, result=result)
        return settled

    async def last_committed_batch(self, run: str) -> int:
        """The last batch of a run that was accounted for; -1 if none was."""
        return await self._store.read(lambda it: self._pen(it).last_committed_batch(run))

    async def pending_writes(self) -> list[PendingWrite]:
        """What was settled and whoever runs the batches is still to write."""
        notes = await self._store.read(lambda it: self._pen(it).pending_commits())
        return [PendingWrite(*it) for it in notes if self._outputs[it[1]].is_external]

    async def finish_write(self, id: int, failed: Sequence[FailedRoot]) -> None:
        """Something of that is written, but for segments that the output refused."""

        def finish(ledger: StoreTables) -> None:
            pen = self._pen(ledger.database)
            pen.record_failures(failed, self._policies, _now_ms(), random.random)
            pen.remove_pending_commit(id)

        await self._store.write(finish)
        self._acks.on_published(id, len(failed))

    async def _tell_settled(self, task: str, place: Position) -> None:
        try:
            async with self._planning:
                await self.sources[task].on_committed([place])
        except OSError as error:
            # It is settled here, which is what counts.
            logger.warning("input %r was not told what is done: %s", task, error)

    async def commit_outputs(self) -> None:
        """Publish what was settled, however long that takes; not what cannot be published now."""
        while not await self._publisher.commit():
            pass

    def _warn_once(self, name: str, text: str | None) -> None:
        """Say what is wrong, once as long as it is the same; None if nothing is."""
        if text is not None and self._complaints.get(name) != text:
            logger.warning("%s", text)
        self._complaints[name] = text

    async def abort_outputs(self, staged: Iterable[tuple[str, Committable]]) -> None:
        """Throw away what was staged for outputs, unless a batch was settled with it."""
        async with self._settling:
            await self._publisher.abort(staged)

    def _settle(
        self, ledger: StoreTables, run: str, batch: int, outcome: BatchResult
    ) -> tuple[CommitResult, list[InputDelivery], list[int]]:
        """Also returns what was delivered again, and the ids of what is to be published."""
        pen, now_ms = self._pen(ledger.database), _now_ms()
        if pen.last_committed_batch(run) >= batch:
            return CommitResult.BEFORE, [], []
        if self._publisher.has_discarded(outcome.staged):
            # Whoever said so does the batch again.
            raise RuntimeError(f"what batch {batch} wrote was thrown away")
        if not all(pen.is_current(it) for it in outcome.deliveries):
            if outcome.read:
                # What Spark's own readers gave comes again with the same batch, and not otherwise.
                raise RuntimeError(f"a part of batch {batch} was delivered again since")
            # Some of it was delivered again meanwhile, and is accounted for there. The rest has to
            # come again too: nobody else has it.
            rest = [it for it in outcome.deliveries if pen.is_current(it)]
            return CommitResult.TOO_LATE, [pen.redeliver(it, now_ms) for it in rest], []
        pen.record_batch(run, batch)
        # Before they are settled, because those that failed before have a history there.
        pen.record_failures(outcome.failed, self._policies, now_ms, random.random)
        for it in outcome.deliveries:
            pen.complete_delivery(it)
            if it.position is not None:
                self.sources[it.task].commit(ledger, it.position)
        writes = []
        for name, staged in outcome.staged:
            unpublished = self._outputs[name].commit_in_transaction(ledger, staged)
            if unpublished is not None:
                writes.append(pen.add_pending_commit(name, unpublished))
        if outcome.window_files:
            self.spark_windows.add(pen, outcome.window_files)
        if outcome.delta.windows:
            self._windows.apply(pen, outcome.delta, now_ms)
        for root, task, segment in outcome.emitted:
            pen.insert_root(root, task, segment, now_ms)
        StateStore(ledger.database, self._job).write(outcome.states)
        return CommitResult.NOW, [], writes

    def _count(self, outcome: BatchResult, writes: Sequence[int]) -> None:
        self.counts.batches += 1
        self.counts.failed += len(outcome.failed)
        delivered = sum(it.segments for it in outcome.deliveries)
        self.counts.delivered += outcome.read
        self._acks.add(delivered + outcome.read + outcome.made - len(outcome.failed), writes)
        add_counts(self.counts.tasks, outcome.tasks)

    # Looks.

    async def status(self) -> JobStatus:
        """How things stand."""
        return await self._store.read(lambda it: read_job_status(self._pen(it), _now_ms()))

    async def late(self) -> dict[str, int]:
        """For each window: how many segments it dropped because they were too late."""
        names = [*self._program.windows.by_name]
        return await self._store.read(lambda it: read_late(self._pen(it), names)) if names else {}

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be something to admit, or after some time."""
        due_ms = await self._store.read(lambda it: self._pen(it).next_due_ms())
        if due_ms is not None:
            timeout_s = min(timeout_s, max(due_ms - _now_ms(), 0) / 1000)
        waiting = [asyncio.ensure_future(it.wait(timeout_s)) for it in self._inputs.values()]
        try:
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for it in waiting:
                it.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def is_drained(self) -> bool:
        """Whether bounded inputs gave all they had, and everything is acknowledged or dead."""
        if any(not it.is_bounded for it in self._inputs.values()):
            return False
        if not self._silent >= set(self._inputs) or not await self._store.read(self._is_empty):
            return False
        # What windows emit at the end is more to do.
        return not await self._store.write(
            lambda ledger: self._windows.fire_drained(self._pen(ledger.database), _now_ms())
        )

    def _is_empty(self, database: StoreConnection) -> bool:
        pen = self._pen(database)
        return not (
            pen.deliveries()
            or pen.count(RootState.WAITING)
            or pen.pending_commits()
            or self.spark_windows.has_results(database)
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
