"""Runs a job on Spark."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.timing import backoff
from postroad.durable.store import Store
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import InputConnector, OutputConnector
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.job import Job
from postroad.pipeline.spark.addresses import place_driver
from postroad.pipeline.spark.batches import BatchProcessor, is_direct
from postroad.pipeline.spark.checkpoint import Checkpoint, claim_inputs
from postroad.pipeline.spark.config import SparkConfig
from postroad.pipeline.spark.coordinator_server import CoordinatorServer
from postroad.pipeline.spark.job_data_source import bind_data_source
from postroad.pipeline.spark.queries import BatchQueryRunner, QueryRunner, StreamingQueryRunner
from postroad.pipeline.spark.session import (
    activate,
    count_task_slots,
    has_jvm,
    start_spark,
    stop_spark,
)
from postroad.pipeline.spark.sql_expressions import find_columns, find_output_types
from postroad.pipeline.spark.watching import (
    Watch,
    find_missing_module,
    summarize_failure,
    wait_for_master,
)
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
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
# Functions are interrupted when they have had their time. Where that does not help, it shows in
# that no worker gives signs of life; but Spark may also be busy without them, as when it commits.
_GRACE_S = 60.0


class SparkRunner:
    """Runs one job on Spark.

        runner = SparkRunner(job, inputs, outputs, SqliteStore("job.db"), checkpoint="job.spark")
        await runner.run()

    Args:
        job: a valid one, whose functions can be imported everywhere.
        inputs: by the name of their task.
        outputs: the same.
        store: where the account is kept. It is opened and closed, if it is not open.
        checkpoint: a directory of this job alone, where Spark notes how far it is, or a URL of one
            in any file system that Spark knows. Without one, all that there is is one batch,
            which suits inputs that have an end.
        settings: how to start Spark.
        session: a session that runs already, instead of one with these settings.
        bind: where the desk listens, instead of at the address that follows from the settings.
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
        bind: str | None = None,
    ) -> None:
        self._program = CompiledJob(job)
        self._inputs = inputs
        self._outputs = outputs
        self._store = store
        self._checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        self._settings = settings or SparkConfig()
        if bind is not None:
            self._settings = msgspec.structs.replace(self._settings, bind=bind)
        if self._checkpoint is not None and not self._checkpoint.is_on_disk:
            self._settings = msgspec.structs.replace(self._settings, has_local_checkpoints=False)
        self._session = session
        self.coordinator = JobCoordinator(self._program, store, inputs, outputs)
        self._host: CoordinatorServer
        # Those of several sessions are told apart by their numbers.
        self._batch_numbers = itertools.count(1)
        self.restarts = 0
        """How often Spark failed and was started again."""
        self.ui_url: str | None = None
        """Where Spark's own pages about the job are, while it runs."""

    async def run(self) -> None:
        """Run until bounded inputs are drained; for ever if one of them has no end."""
        run, name = secrets.token_hex(8), self._program.job.name
        is_ours = not self._store.is_open
        if is_ours:
            await self._store.open(name)
        try:
            if self._checkpoint is not None and not self._checkpoint.is_remote:
                store = self._store.id.hex()
                run = await asyncio.to_thread(self._checkpoint.open, name, store)
            await self.coordinator.open()
            try:
                await self._run_hosted(run)
            finally:
                await self.coordinator.close()
        finally:
            if is_ours:
                await self._store.close()

    async def _run_hosted(self, run: str) -> None:
        self._settings = await asyncio.to_thread(self._place)
        self._host = CoordinatorServer(
            self._program, self.coordinator, self._settings.bind, advertise=self._settings.advertise
        )
        desk = await self._host.start()
        try:
            order = WorkerContext(
                self._program.job,
                self._inputs,
                self._outputs,
                desk,
                run,
                self._settings.worker_bytes,
                self._settings.python_path,
            )
            await self._place_windows(order)
            if self._session is not None:
                await self._supervise(self._session, order)
            else:
                # Again if the JVM is gone, and the session with it.
                while not await self._with_session(order):
                    logger.warning("job %r starts Spark again", self._program.job.name)
        finally:
            await self._host.stop()

    async def _place_windows(self, context: WorkerContext) -> None:
        """Decide which windows Spark keeps."""
        windows = self.coordinator.spark_windows
        names = windows.candidates() if self._can_keep_windows else []
        context.spark_windows = tuple(await windows.assign(context.run, names))
        if self._checkpoint is not None and context.spark_windows:
            context.window_files = self._checkpoint.window_files
            needed = await windows.needed_files()
            await asyncio.to_thread(_remove_others, context.window_files, needed)

    @property
    def _can_keep_windows(self) -> bool:
        """Whether Spark has a place for what windows hold, which every machine reaches."""
        settings = self._settings
        if self._checkpoint is None or self._checkpoint.is_remote:
            return False
        if settings.is_remote or settings.is_stateful is False:
            return False
        return settings.is_stateful is True or settings.is_loopback

    def _place(self) -> SparkConfig:
        settings = self._settings
        if self._session is not None and hasattr(self._session, "_jsparkSession"):
            master = self._session.sparkContext.master
            settings = msgspec.structs.replace(settings, master=master)
        return place_driver(settings)

    async def _with_session(self, order: WorkerContext) -> bool:
        """Run the job in a session of its own; returns whether it is done."""
        session = await self._start_session()
        try:
            return await self._supervise(session, order)
        finally:
            self.ui_url = None
            await asyncio.to_thread(stop_spark, session)

    async def _start_session(self) -> SparkSession:
        """Start a session: the first, or another as soon as the cluster has one for us."""
        failures = 0
        while True:
            if self.restarts:
                await wait_for_master(self._settings.master)
            starting = asyncio.ensure_future(asyncio.to_thread(start_spark, self._settings))
            try:
                return await asyncio.shield(starting)
            except asyncio.CancelledError:
                # What a thread does, nobody can stop; so it is awaited and undone.
                await asyncio.to_thread(stop_spark, await starting)
                raise
            except Exception as error:
                if not self.restarts:
                    raise
                failures += 1
                pause_s = _pause_s(failures)
                logger.warning(
                    "job %r cannot start Spark at %s and tries again in %.1f s: %s",
                    self._program.job.name,
                    self._settings.master,
                    pause_s,
                    summarize_failure(error),
                )
                await asyncio.sleep(pause_s)

    async def _supervise(self, session: SparkSession, order: WorkerContext) -> bool:
        """Run queries until the job is drained, again whenever one fails, as long as they can.

        Returns:
            Whether the job is done; otherwise the session is.
        """
        queries = await asyncio.to_thread(self._make_queries, session, order)
        if self._checkpoint is not None and order.spark_inputs:
            name = self._program.job.name
            await claim_inputs(self._store, name, order.run, order.spark_inputs)
        watch = Watch(session, self._program.job.name, may_stop=self._session is None)
        failures = barren = 0
        while True:
            started_s, settled = time.monotonic(), self.coordinator.counts.batches
            failure = await watch.run(queries.run())
            if failure is None:
                return True
            if self._host.fatal_error is not None:
                raise ConfigError(self._host.fatal_error)
            has_settled = self.coordinator.counts.batches > settled
            if (module := find_missing_module(str(failure))) is not None and not has_settled:
                raise ConfigError(
                    f"Spark's workers have no module {module!r}: install it on every machine, or "
                    "bring it with the setting py_files (--py-files)"
                )
            self.restarts += 1
            if watch.is_lost:
                return False
            failures = 1 if time.monotonic() - started_s > _STABLE_AFTER_S else failures + 1
            pause_s = _pause_s(failures)
            barren = 0 if has_settled else barren + 1
            if barren >= _FAILURES_WITHOUT_PROGRESS_MAX:
                self._host.enable_isolation()
            logger.warning(
                "job %r failed on Spark and starts again in %.1f s: %s",
                self._program.job.name,
                pause_s,
                summarize_failure(failure),
                exc_info=failure if logger.isEnabledFor(logging.DEBUG) else None,
            )
            await asyncio.sleep(pause_s)
            if self._session is None and not has_jvm(session):
                return False

    def _make_queries(self, session: SparkSession, context: WorkerContext) -> QueryRunner:
        activate(session)
        self.ui_url = getattr(getattr(session, "_sc", None), "uiWebUrl", None)
        if self._checkpoint is not None and self._checkpoint.is_remote:
            store = self._store.id.hex()
            context.run = self._checkpoint.open(self._program.job.name, store, session)
        name = f"postroad_{context.run}"
        context.columns = find_columns(session, self._program.job)
        context.output_types = find_output_types(session, self._program.job)
        context.is_direct = is_direct(session, context)
        session.dataSource.register(bind_data_source(name, context))
        coordinator = self.coordinator
        self._adapt(session, context)
        if self._session is None and _SHUFFLE_PARTITIONS not in self._settings.conf:
            # The default of 200 is for large tables, not for batches of a stream.
            session.conf.set(_SHUFFLE_PARTITIONS, str(context.partitions))
        if self._checkpoint is None:
            if context.spark_outputs:
                raise ConfigError(
                    f"output {context.spark_outputs[0]!r} is written by Spark, which needs a "
                    "checkpoint: a directory for what it has not written yet"
                )
            if context.dataframe_tasks:
                raise ConfigError(
                    f"task {context.dataframe_tasks[0]!r} is of kind dataframe, which needs a "
                    "checkpoint: a directory for the segments of a batch"
                )
            processor = BatchProcessor(context, "")
            numbers = self._batch_numbers
            return BatchQueryRunner(session, name, context, coordinator, processor, numbers)
        if context.spark_outputs:
            context.shared_file = self._checkpoint.marker
        processor = BatchProcessor(context, self._checkpoint.staged_files)
        processor.remove_abandoned(session)
        return StreamingQueryRunner(
            session,
            name,
            context,
            coordinator,
            self._host,
            self._checkpoint.spark_files,
            processor,
            self._limit_s,
            self._checkpoint.window_state,
            partial(self._adapt, session, context),
        )

    def _adapt(self, session: SparkSession, context: WorkerContext) -> None:
        """Have batches in as many parts as the cluster can work on at once."""
        slots = self._settings.partitions or count_task_slots(session)
        context.partitions = self.coordinator.parallelism = slots

    @property
    def _limit_s(self) -> float:
        """How long workers may be silent: each segment has its time, then the batch hangs."""
        tasks = self._program.graph.tasks
        longest_s = max(tasks[name].pending_timeout_s for name in self._program.graph.inputs)
        return longest_s + _GRACE_S


def _remove_others(directory: Path, needed: Collection[str]) -> None:
    """Have a directory, with nothing in it that nobody will read."""
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        if str(path) not in needed:
            path.unlink()


def _pause_s(failures: int) -> float:
    return backoff(
        failures, initial_delay_s=_PAUSE_FIRST_S, max_delay_s=_PAUSE_MAX_S, jitter=random.random()
    )
