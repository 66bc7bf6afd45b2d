"""Runs a job on Spark."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.core.backoff import backoff
from postroad.core.errors import ConfigError
from postroad.durable.store import Store
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import InputConnector, OutputConnector
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.job import Job
from postroad.pipeline.spark.checkpoint import open_checkpoint
from postroad.pipeline.spark.config import SparkConfig
from postroad.pipeline.spark.coordinator_server import CoordinatorServer
from postroad.pipeline.spark.queries import BatchQueryRunner, QueryRunner, StreamingQueryRunner
from postroad.pipeline.spark.session import activate, has_jvm, start_spark, stop_spark
from postroad.pipeline.spark.sql_expressions import find_columns
from postroad.pipeline.spark.worker_context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("postroad.pipeline")

_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 60.0
# A query that ran so long without failing is well again.
_STABLE_AFTER_S = 60.0
# So many queries may fail in a row, and none settle anything, before functions are suspected.
_FAILURES_WITHOUT_PROGRESS_MAX = 2
_TEXT_MAX = 500
# The last line of a traceback in a worker.
_OWN_ERROR = re.compile(r"[\w.]+(Error|Exception|Failure): ")


class SparkRunner:
    """Runs one job on Spark.

        runner = SparkRunner(job, inputs, outputs, SqliteStore("job.db"), checkpoint="job.spark")
        await runner.run()

    Args:
        job: a valid one, whose functions can be imported everywhere.
        inputs: by the name of their task.
        outputs: the same.
        store: where the account is kept. It is opened and closed, if it is not open.
        checkpoint: a directory of this job alone, where Spark notes how far it is. Without one,
            all that there is is one batch, which suits inputs that have an end.
        settings: how to start Spark.
        session: a session that runs already, instead of one with these settings.
        bind: where the desk listens; on a cluster, an address that its machines can reach.
    """

    def __init__(
        self,
        job: Job,
        inputs: Mapping[str, InputConnector],
        outputs: Mapping[str, OutputConnector],
        store: Store,
        checkpoint: str | Path | None = None,
        settings: SparkConfig | None = None,
        *,
        session: SparkSession | None = None,
        bind: str = "127.0.0.1:0",
    ) -> None:
        self._program = CompiledJob(job)
        for name in sorted(self._program.group_tasks):
            # Its parts are cut by root: a group would be in several of them.
            raise ConfigError(f"task {name!r} is of kind group, which needs the local runner")
        self._inputs = inputs
        self._outputs = outputs
        self._store = store
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._settings = settings or SparkConfig()
        self._session = session
        self.coordinator = JobCoordinator(self._program, store, inputs, outputs)
        self._host = CoordinatorServer(self._program, self.coordinator, bind)
        self.restarts = 0
        """How often Spark failed and was started again."""

    async def run(self) -> None:
        """Run until bounded inputs are drained; for ever if one of them has no end."""
        run = secrets.token_hex(8)
        if self._checkpoint is not None:
            run = await asyncio.to_thread(open_checkpoint, self._checkpoint, self._program.job.name)
        is_ours = not self._store.is_open
        if is_ours:
            await self._store.open(self._program.job.name)
        try:
            await self.coordinator.open()
            try:
                await self._run_hosted(run)
            finally:
                await self.coordinator.close()
        finally:
            if is_ours:
                await self._store.close()

    async def _run_hosted(self, run: str) -> None:
        desk = await self._host.start()
        try:
            order = WorkerContext(
                self._program.job,
                self._inputs,
                self._outputs,
                desk,
                run,
                self._settings.partitions,
                self._settings.worker_bytes,
                self._settings.python_path,
            )
            if self._session is not None:
                await self._supervise(self._session, order)
            else:
                # Again if the JVM is gone, and the session with it.
                while not await self._with_session(order):
                    logger.warning("the JVM of job %r is gone", self._program.job.name)
        finally:
            await self._host.stop()

    async def _with_session(self, order: WorkerContext) -> bool:
        """Run the job in a session of its own; returns whether it is done."""
        starting = asyncio.ensure_future(asyncio.to_thread(start_spark, self._settings))
        try:
            session = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # What a thread does, nobody can stop; so it is awaited and undone.
            await asyncio.to_thread(stop_spark, await starting)
            raise
        try:
            return await self._supervise(session, order)
        finally:
            await asyncio.to_thread(stop_spark, session)

    async def _supervise(self, session: SparkSession, order: WorkerContext) -> bool:
        """Run queries until the job is drained, again whenever one fails, as long as they can.

        Returns:
            Whether the job is done; otherwise the session is.
        """
        queries = await asyncio.to_thread(self._make_queries, session, order)
        failures = barren = 0
        while True:
            started_s, settled = time.monotonic(), self.coordinator.counts.batches
            failure = await queries.run()
            if failure is None:
                return True
            if self._host.fatal_error is not None:
                raise ConfigError(self._host.fatal_error)
            failures = 1 if time.monotonic() - started_s > _STABLE_AFTER_S else failures + 1
            pause_s = backoff(
                failures, first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S, chance=random.random()
            )
            self.restarts += 1
            barren = barren + 1 if self.coordinator.counts.batches == settled else 0
            if barren >= _FAILURES_WITHOUT_PROGRESS_MAX:
                self._host.enable_isolation()
            logger.warning(
                "job %r failed on Spark and starts again in %.1f s: %s",
                self._program.job.name,
                pause_s,
                _summarize_failure(failure),
                exc_info=failure if logger.isEnabledFor(logging.DEBUG) else None,
            )
            await asyncio.sleep(pause_s)
            if self._session is None and not has_jvm(session):
                return False

    def _make_queries(self, session: SparkSession, order: WorkerContext) -> QueryRunner:
        from postroad.pipeline.spark.source import register_data_source

        activate(session)
        name = f"postroad_{order.run}"
        order.columns = find_columns(session, self._program.job)
        session.dataSource.register(register_data_source(name, order))
        if self._checkpoint is None:
            return BatchQueryRunner(session, name, order, self.coordinator)
        return StreamingQueryRunner(
            session, name, order, self.coordinator, self._host, self._checkpoint
        )


def _summarize_failure(failure: BaseException) -> str:
    """What matters of what Spark says, which goes on for pages."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    own = [line for line in lines if _OWN_ERROR.match(line)]
    return (own[-1] if own else lines[0] if lines else repr(failure))[:_TEXT_MAX]
