"""Runs a job in this process, in plain Python: for tests of one's functions, and small things."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from postroad.core.backoff import backoff
from postroad.core.errors import ConfigError
from postroad.durable.store import MemoryStore, Store
from postroad.pipeline.batch import PlainBatchExecutor
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import Committable, InputConnector, OutputConnector
from postroad.pipeline.coordinator.committer import write_batch_output, writer_id
from postroad.pipeline.coordinator.coordinator import BatchResult, JobCoordinator
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.functions import Function, import_function
from postroad.pipeline.job import Job

T = TypeVar("T")

logger = logging.getLogger("postroad.pipeline")

# How long to wait when there is nothing to do: time for what windows and the pen have.
_IDLE_S = 0.1
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 10.0


class LocalRunner:
    """Runs one job.

        runner = LocalRunner(job, {"in": MemoryInput(segments)}, {"out": MemoryOutput()})
        await runner.run()

    Args:
        job: a valid one.
        inputs: by the name of their task.
        outputs: the same.
        store: where the account is kept; in memory by default. It is opened and closed, if it is
            not open.
        find: how functions are found; by their import paths by default.

    Raises:
        ConfigError: a function is not there, or a task needs Spark.
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
        self._program = CompiledJob(job, find)
        for name in sorted(self._program.sql_tasks | self._program.dataframe_tasks):
            kind = self._program.graph.tasks[name].kind
            raise ConfigError(f"task {name!r} is of kind {kind}, which needs Spark")
        self._store = MemoryStore() if store is None else store
        self._outputs = outputs
        self.coordinator = JobCoordinator(self._program, self._store, inputs, outputs)
        # Names of this run's batches, unlike those of any other.
        self._run = secrets.token_hex(8)
        self._batch = 0

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
        try:
            self._program.start()
            await self._run_all()
        finally:
            self._program.stop()
            await self.coordinator.close()

    async def _run_all(self) -> None:
        # First what was delivered before a crash and never settled.
        deliveries = await self.coordinator.uncommitted()
        while True:
            if deliveries:
                await self._run_batch(deliveries)
            elif await self.coordinator.is_drained():
                return
            else:
                await self.coordinator.wait(_IDLE_S)
            deliveries = await self.coordinator.next_deliveries()

    async def _run_batch(self, deliveries: Sequence[InputDelivery]) -> None:
        self._batch += 1
        self._program.lifecycles.before_batch()
        batch = await self._insist("an input cannot be read", lambda _: self._take(deliveries))
        staged = await self._stage_all(batch)
        batch.mark_written(self._outputs)
        failed, delta = batch.finish(_now_ms())
        outcome = BatchResult(list(deliveries), failed, staged, delta)
        await self.coordinator.commit_batch(self._run, self._batch, outcome)
        self._program.lifecycles.after_batch()

    async def _stage_all(self, batch: PlainBatchExecutor) -> list[tuple[str, Committable]]:
        staged = [(task, await self._stage(task, batch)) for task in self._outputs]
        return [(task, it) for task, it in staged if it is not None]

    async def _take(self, deliveries: Sequence[InputDelivery]) -> PlainBatchExecutor:
        batch = PlainBatchExecutor(self._program)
        for delivery in deliveries:
            for delivered in await self.coordinator.read(delivery):
                batch.process(delivered, _now_ms())
                # Functions that never wait must not keep everything else waiting.
                await asyncio.sleep(0)
        return batch

    async def _stage(self, task: str, batch: PlainBatchExecutor) -> Committable | None:
        """Stage what is for an output."""

        async def stage(attempt: int) -> Committable | None:
            part = f"{self._run}-{self._batch:08d}-{attempt}"
            name = writer_id(self._program.job.name, part, task)
            return await asyncio.to_thread(
                write_batch_output, self._outputs[task], name, task, batch
            )

        return await self._insist(f"output {task!r} cannot be written", stage)

    async def _insist(self, complaint: str, act: Callable[[int], Awaitable[T]]) -> T:
        """Do something however long it is not possible; it is told how often it was tried."""
        attempt = 0
        while True:
            try:
                return await act(attempt)
            except OSError as error:
                attempt += 1
                logger.warning("%s: %s", complaint, error)
                pause_s = backoff(
                    attempt, first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S, chance=random.random()
                )
                await asyncio.sleep(pause_s)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
