"""Runs a job in this process: the same pass as on Spark, in one thread."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.core.timing import backoff
from postroad.durable.store import MemoryStore, Store
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    OutputConnector,
    OutputWriter,
)
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.records import InputDelivery, RetryRoot
from postroad.pipeline.function_thread import FunctionThread, StuckFunctionError
from postroad.pipeline.functions import Function, import_function
from postroad.pipeline.job import Job, Segment

if TYPE_CHECKING:
    from postroad.pipeline.vectorized.partition import PartitionResult

logger = logging.getLogger("postroad.pipeline")

# How long to wait when idle, until windows and retries are looked at.
_IDLE_S = 0.1
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 10.0


class LocalRunner:
    """Runs one job.

        runner = LocalRunner(job, {"in": MemoryInput(segments)}, {"out": MemoryOutput()})
        await runner.run()

    Functions and hooks run in a thread of their own, never on the event loop.

    Args:
        job: a valid one.
        inputs: by the name of their task.
        outputs: the same.
        store: where the account is kept; in memory by default. It is opened and closed, if it is
            not open.
        find: how functions are found; by their import paths by default.

    Raises:
        ConfigError: a function is not there, or a task needs Spark.
        MissingExtraError: NumPy is not installed.
    """

    def __init__(
        self,
        job: Job,
        inputs: Mapping[str, InputConnector],
        outputs: Mapping[str, OutputConnector],
        store: Store | None = None,
        *,
        find: Callable[[str], Function] = import_function,
    ) -> None:
        if find_spec("numpy") is None:
            raise MissingExtraError("pipeline", "running a job")
        self._job = job
        self._find = find
        self._program = CompiledJob(job, find)
        for name in sorted(self._program.sql_tasks | self._program.dataframe_tasks):
            kind = self._program.graph.tasks[name].kind
            raise ConfigError(f"task {name!r} is of kind {kind}, which needs Spark")
        self._store = MemoryStore() if store is None else store
        self._inputs = inputs
        self._outputs = outputs
        self.coordinator = JobCoordinator(self._program, self._store, inputs, outputs)
        # Names of this run's batches, unlike those of any other.
        self._run = secrets.token_hex(8)
        self._batch = 0
        self._thread: FunctionThread
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Run until bounded inputs are drained; for ever if one of them has no end."""
        is_ours = not self._store.is_open
        if is_ours:
            await self._store.open(self._program.job.name)
        try:
            await self._run_job()
        finally:
            if is_ours:
                await self._store.close()

    async def _run_job(self) -> None:
        await self.coordinator.open()
        self._loop = asyncio.get_running_loop()
        self._thread = self._new_thread()
        try:
            await self.coordinator.spark_windows.assign(self._run)
            await self._thread.run(self._program.start)
            await self._run_all()
        finally:
            try:
                with suppress(StuckFunctionError):
                    await self._thread.run(self._program.stop)
            finally:
                self._thread.abandon()
                await self.coordinator.close()

    def _new_thread(self) -> FunctionThread:
        return FunctionThread(min(limit.look_s for limit in self._program.time_limits.values()))

    async def _run_all(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        # First what was delivered before a crash and never committed.
        deliveries = await self.coordinator.uncommitted()
        while True:
            if task.cancelling() > cancellations:
                # A library of a connector swallowed it, as asyncio.wait_for did before Python 3.12.
                raise asyncio.CancelledError
            if deliveries:
                await self._run_batch(deliveries)
            elif await self.coordinator.is_drained():
                return
            else:
                await self.coordinator.wait(_IDLE_S)
            deliveries = await self.coordinator.next_deliveries()

    async def _run_batch(self, deliveries: Sequence[InputDelivery]) -> None:
        self._batch += 1
        again = {
            delivery.number: await self.coordinator.retry_roots(
                delivery.number, None, delivery.segments
            )
            for delivery in deliveries
            if delivery.position is None
        }
        await self._thread.run(self._program.before_batch)
        part = await self._insist_on_reading(deliveries, again)
        outcome = BatchResult(
            list(deliveries),
            part.failed,
            part.staged,
            part.delta,
            made=part.made,
            tasks=part.tasks,
            emitted=part.emitted,
            states=part.states,
        )
        await self.coordinator.commit_batch(self._run, self._batch, outcome)
        self._program.isolate_functions = False
        await self._thread.run(self._program.lifecycles.after_batch)

    async def _insist_on_reading(
        self, deliveries: Sequence[InputDelivery], again: Mapping[int, list[RetryRoot]]
    ) -> PartitionResult:
        """Run a batch however long an input cannot be read."""
        attempt = 0
        while True:
            part = f"{self._run}-{self._batch:08d}-{attempt}"
            attempt += 1
            try:
                return await self._thread.run(lambda: self._work(part, deliveries, again))  # noqa: B023
            except StuckFunctionError:
                await self._isolate()
            except OSError as error:
                logger.warning("an input cannot be read: %s", error)
                await asyncio.sleep(_pause_s(attempt))

    async def _isolate(self) -> None:
        """Leave a thread that does not come back; the batch runs in processes that end."""
        logger.warning(
            "a function of job %r does not end and cannot be interrupted: its batch runs again,"
            " in other processes",
            self._program.job.name,
        )
        self._thread.abandon()
        # As new as what a new worker of Spark would have: hooks may have made things that belong
        # to the thread.
        self._program = CompiledJob(self._job, self._find)
        self._program.isolate_functions = True
        self._thread = self._new_thread()
        await self._thread.run(self._program.start)

    def _work(
        self, name: str, deliveries: Sequence[InputDelivery], again: Mapping[int, list[RetryRoot]]
    ) -> PartitionResult:
        """Run a batch, in the thread."""
        self._program.read_states = self._read_states
        from postroad.pipeline.vectorized import partition, shuffle_stages

        outputs = {task: _InsistentOutput(task, output) for task, output in self._outputs.items()}
        single = partition.SingleStagePartition(self._program, outputs, name)
        shuffled = partition.ShuffledPartition(self._program, outputs, name)
        first = shuffle_stages.SourceStage(self._program)
        rows = []
        part: partition.PartitionExecutor = shuffled if self._program.is_multi_stage else single
        taking = first if self._program.is_multi_stage else single
        try:
            for delivery in deliveries:
                if delivery.position is None:
                    taken = taking.process_retries(
                        delivery.number, delivery.task, again[delivery.number]
                    )
                else:
                    connector = self.coordinator.sources[delivery.task]
                    chunks = connector.read(delivery.position)
                    taken = taking.process_split(
                        delivery.number, delivery.task, delivery.generation, connector, chunks
                    )
                rows += [row for those in taken or () for row in those]
            if self._program.is_multi_stage:
                rows += first.finish()
                for stage in self._program.graph.stages[1:]:
                    later = shuffle_stages.ShuffleStage(self._program, stage.index)
                    rows = [*(row for those in later.take(rows) for row in those), *later.finish()]
                shuffled.take_rows(rows)
            return part.finish()
        except BaseException:
            part.abort()
            raise

    def _read_states(self, task: str, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        reading = self.coordinator.read_states(task, keys)
        return asyncio.run_coroutine_threadsafe(reading, self._loop).result()


class _InsistentOutput(OutputConnector):
    """An output for the pass: what cannot be written now is written later.

    The pass need not run again for that, and call all functions twice.
    """

    def __init__(self, task: str, output: OutputConnector) -> None:
        self._task = task
        self._output = output

    def create_writer(self, stage: str) -> OutputWriter:
        return _InsistentWriter(
            self._task,
            lambda attempt: self._output.create_writer(
                stage if attempt == 0 else f"{stage}-{attempt}"
            ),
        )


class _InsistentWriter(OutputWriter):
    def __init__(self, task: str, create: Callable[[int], OutputWriter]) -> None:
        self._task = task
        self._create = create
        self._attempt = 0
        self._writer: OutputWriter | None = None
        self._taken: list[tuple[Sequence[int], Sequence[Segment]]] = []

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self._insist(lambda writer: writer.write(ids, segments))
        self._taken.append((ids, segments))

    def prepare_commit(self) -> Committable | None:
        staged: list[Committable | None] = []
        self._insist(lambda writer: staged.append(writer.prepare_commit()))
        return staged[-1]

    def _insist(self, act: Callable[[OutputWriter], None]) -> None:
        while True:
            try:
                if self._writer is None:
                    self._writer = self._create(self._attempt)
                    for ids, segments in self._taken:
                        self._writer.write(ids, segments)
                return act(self._writer)
            except OSError as error:
                logger.warning("output %r cannot be written: %s", self._task, error)
                self.abort()
                self._attempt += 1
                time.sleep(_pause_s(self._attempt))

    def abort(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()


def _pause_s(attempt: int) -> float:
    return backoff(
        attempt, initial_delay_s=_PAUSE_FIRST_S, max_delay_s=_PAUSE_MAX_S, jitter=random.random()
    )
