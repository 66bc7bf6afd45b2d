"""What is done with each micro-batch: its tasks run, it is committed, then Spark writes its part.

The work of a batch ends in one action. What partitions came to is collected; where Spark writes
outputs, the same action stages their segments, and they are published when the coordinator has
accounted for the batch. A batch that Spark does again is written again, and never twice.

Batches of a stream are settled while Spark is at the next one. If that fails, or the process ends,
Spark takes a batch for done that was never accounted for: what it had is then delivered again.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.spark.coordinator_client import CoordinatorClient, PartitionResults
from postroad.pipeline.spark.dataframes import BatchInParts
from postroad.pipeline.spark.job_pass import Report, add_passes, read_outcomes
from postroad.pipeline.spark.result_rows import OUTPUT_COLUMN, OutcomeList, output_label
from postroad.pipeline.spark.spark_inputs import format_of
from postroad.pipeline.spark.spark_outputs import (
    Published,
    is_file_format,
    keep_directories,
    move_directory,
    publish,
    staging_options,
)
from postroad.pipeline.spark.watching import summarize_failure
from postroad.pipeline.spark.worker_context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("postroad.pipeline")

Commit: TypeAlias = Callable[[], None]


def is_direct(session: SparkSession, context: WorkerContext) -> bool:
    """Whether Spark can write what the last pass gives as it is, and files only have to be moved.

    It can if all outputs are files of one format with the same columns.
    """
    tasks = [context.graph.tasks[name] for name in context.spark_outputs]
    return (
        bool(tasks)
        and not (context.group_tasks or context.dataframe_tasks)
        and getattr(session, "_jvm", None) is not None
        and tasks[0].schema is not None
        and is_file_format(tasks[0])
        and all(
            task.schema == tasks[0].schema and staging_options(task) == staging_options(tasks[0])
            for task in tasks
        )
    )


class BatchFailed(Exception):
    """A batch was not done; Spark does it again.

    In few words: Spark matches what comes out of a callback against patterns, and a traceback of
    Java's in it overflows the stack.
    """


class Settling:
    """Settles one batch in a thread of its own; an error is kept for whoever looks next."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None
        """Why the last one could not be settled."""

    def begin(self, settle: Callable[[], None]) -> None:
        """Have a batch settled; the one before must have been waited for."""

        def run() -> None:
            try:
                settle()
            except Exception as error:
                self.failure = error

        self._thread = threading.Thread(target=run, name="settling", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the batch that is being settled.

        Raises:
            Exception: whatever it failed with.
        """
        self.wait()
        if self.failure is not None:
            raise self.failure

    def wait(self) -> None:
        """The same, however it ends."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


class BatchProcessor:
    """Does a batch; goes to wherever Spark calls it.

    Args:
        context: the job.
        stage: a directory that all workers reach, for what Spark writes.
    """

    def __init__(self, context: WorkerContext, stage: str) -> None:
        self._context = context
        self._stage = stage
        self.settling: Settling | None = None
        """Where batches are settled while Spark is at the next one; nowhere by default."""

    def __getstate__(self) -> dict[str, Any]:
        # Through Spark Connect it works in another process, where nobody looks after threads.
        return {**self.__dict__, "settling": None}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Do a batch of input rows."""
        try:
            self.process(rows, batch)
        except Exception as error:
            logger.debug("batch %d failed", batch, exc_info=True)
            raise BatchFailed(summarize_failure(error)) from None

    def process(self, rows: DataFrame, batch: int) -> None:
        """The same, but for what it raises."""
        coordinator, run = self._context.coordinator, self._context.run
        session = rows.sparkSession
        commit = None
        if coordinator.begin_batch(run, batch):
            _describe(session, f"{self._context.job_name}: batch {batch}")
            outcomes, writes = self._act(session, rows, batch)
            parts = PartitionResults(*read_outcomes(outcomes))
            commit = partial(coordinator.commit_batch, run, batch, parts, writes)
        if self.settling is None:
            _call(commit)
            self.write_pending(session, coordinator)
            return
        # Batches are committed and written one after the other.
        self.settling.join()
        if self._context.spark_inputs or self._context.group_tasks:
            # How far Spark's readers are is in its checkpoint alone, which goes on after this, and
            # functions of groups in the next batch see the states that this one left.
            _call(commit)
            commit = None
        if commit is not None or self._context.spark_outputs:
            self.settling.begin(partial(self._settle, session, coordinator, commit))

    def _settle(
        self, session: SparkSession, coordinator: CoordinatorClient, commit: Commit | None
    ) -> None:
        _call(commit)
        self.write_pending(session, coordinator)

    def _add_passes(self, rows: DataFrame, report: Report | None = None) -> DataFrame:
        return add_passes(rows, self._context, report)

    def _act(
        self, session: SparkSession, rows: DataFrame, batch: int
    ) -> tuple[list[bytes], list[tuple[str, Committable]]]:
        """Have Spark do all the work; returns what partitions came to, and what is staged."""
        context = self._context
        if not context.spark_outputs and not context.dataframe_tasks:
            return _collect(self._add_passes(rows)), []
        # Of this attempt alone: a driver that is thought dead may still write to that of its own.
        path = f"{self._stage}/{context.run}-{batch:08d}-{secrets.token_hex(4)}"
        staged: Committable = {"path": path, "run": context.run, "batch": batch}
        if context.is_direct:
            outcomes = self._write_files(rows, path)
            staged["direct"] = True
        elif context.dataframe_tasks:
            rows = BatchInParts(session, context, staged).run(self._add_passes(rows))
            outcomes = _collect(rows.where(rows["outcome"].isNotNull()))
            if not context.spark_outputs:
                move_directory(session, path, None)
        else:
            self._add_passes(rows).write.mode("overwrite").partitionBy("task").parquet(path)
            rows = session.read.parquet(path)
            outcomes = _collect(rows.where(rows["outcome"].isNotNull()))
        return outcomes, [(name, staged) for name in context.spark_outputs]

    def _write_files(self, rows: DataFrame, path: str) -> list[bytes]:
        """Write files as they are to be; returns what partitions came to."""
        outcomes = OutcomeList(rows.sparkSession)
        results = self._add_passes(rows, outcomes.report)
        first = self._context.graph.tasks[self._context.spark_outputs[0]]
        writer = results.write.format(format_of(first)).options(**staging_options(first))
        columns = first.options.get("partition_by") or ()
        try:
            writer.partitionBy(OUTPUT_COLUMN, *columns).mode("overwrite").save(path)
        finally:
            outcomes.close()
        return outcomes.outcomes

    def remove_abandoned(self, session: SparkSession) -> None:
        """Remove what attempts have staged that nobody committed; before the first batch."""
        if self._context.spark_outputs or self._context.dataframe_tasks:
            pending = self._context.coordinator.list_writes()
            staged = {str(it.committable["path"]): it.task for it in pending}
            missing = keep_directories(session, self._stage, [*staged])
            if missing:
                raise ConfigError(
                    f"what was done for output {staged[missing[0]]!r} and is not written was in "
                    f"{missing[0]}, which is gone with the job's checkpoint: bring that back, or "
                    "delete the job's store and its outputs, and the job starts from the beginning"
                )

    def write_pending(self, session: SparkSession, coordinator: CoordinatorClient) -> None:
        """Write what was committed and is not written."""
        if not self._context.spark_outputs:
            return
        pending = coordinator.list_writes()
        for it in pending:
            task = self._context.graph.tasks[it.task]
            label = output_label(self._context, it.task)
            _describe(session, f"{self._context.job_name}: write {it.task}")
            place = Published(self._context.job_name, task, label, it.committable)
            if it.committable.get("direct"):
                move_directory(session, place.staged_path, place.path)
                coordinator.finish_write(it.id)
            else:
                coordinator.finish_write(it.id, publish(session, place))
        for path in {str(it.committable["path"]) for it in pending}:
            move_directory(session, path, None)


def _call(commit: Commit | None) -> None:
    if commit is not None:
        commit()


def _collect(results: DataFrame) -> list[bytes]:
    outcomes: list[bytes] = results.select("outcome").toArrow().column(0).to_pylist()
    return outcomes


def _describe(session: SparkSession, text: str) -> None:
    """Have Spark's UI and event log say what its jobs are for."""
    context: Any = getattr(session, "_sc", None)
    if context is not None:
        context.setJobDescription(text)
