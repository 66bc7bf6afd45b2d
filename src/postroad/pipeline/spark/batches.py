"""What is done with each micro-batch: its tasks run, it is committed, then Spark writes its part.

The work of a batch ends in one action. What partitions came to is collected; where Spark writes
outputs, their segments are staged by the same action, and written for good when the coordinator
has accounted for the batch. A batch that Spark does again is written again, and never twice.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.spark.coordinator_client import CoordinatorClient, PartitionResults
from postroad.pipeline.spark.job_pass import add_passes, read_outcomes
from postroad.pipeline.spark.spark_outputs import publish
from postroad.pipeline.spark.worker_context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("postroad.pipeline")


class BatchFailed(Exception):
    """A batch was not done; Spark does it again.

    In few words: Spark matches what comes out of a callback against patterns, and a traceback of
    Java's in it overflows the stack.
    """


class BatchProcessor:
    """Does a batch; goes to wherever Spark calls it.

    Args:
        context: the job.
        stage: a directory that all workers reach, for what Spark writes.
    """

    def __init__(self, context: WorkerContext, stage: str) -> None:
        self._context = context
        self._stage = stage

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Do a batch of input rows."""
        try:
            self.process(rows, batch)
        except Exception as error:
            logger.debug("batch %d failed", batch, exc_info=True)
            raise BatchFailed(_last_line(error)) from None

    def process(self, rows: DataFrame, batch: int) -> None:
        """The same, but for what it raises."""
        coordinator, run = self._context.coordinator, self._context.run
        session = rows.sparkSession
        if coordinator.begin_batch(run, batch):
            _describe(session, f"{self._context.job_name}: batch {batch}")
            results = self._add_passes(rows)
            if self._context.spark_outputs:
                outcomes, writes = self._stage_rows(session, results, batch)
            else:
                outcomes, writes = _collect(results), []
            inline, stored = read_outcomes(outcomes)
            coordinator.commit_batch(run, batch, PartitionResults(inline, stored), writes)
        self.write_pending(session, coordinator)

    def _add_passes(self, rows: DataFrame) -> DataFrame:
        return add_passes(rows, self._context)

    def _stage_rows(
        self, session: SparkSession, results: DataFrame, batch: int
    ) -> tuple[list[bytes], list[tuple[str, Committable]]]:
        """Have Spark stage what it is to write: all outputs by one action."""
        path = f"{self._stage}/{self._context.run}-{batch:08d}"
        results.write.mode("overwrite").partitionBy("task").parquet(path)
        staged = session.read.parquet(path)
        outcome = staged.where(staged["outcome"].isNotNull())
        counts = staged.where(staged["outcome"].isNull()).groupBy("task").count().collect()
        writes: list[tuple[str, Committable]] = [
            (str(row["task"]), {"path": path, "run": self._context.run, "batch": batch})
            for row in counts
        ]
        return _collect(outcome), writes

    def write_pending(self, session: SparkSession, coordinator: CoordinatorClient) -> None:
        """Write what was committed and is not written."""
        if not self._context.spark_outputs:
            return
        for it in coordinator.list_writes():
            task = self._context.graph.tasks[it.task]
            _describe(session, f"{self._context.job_name}: write {it.task}")
            failed = publish(session, self._context.job_name, task, it.committable)
            coordinator.finish_write(it.id, failed)


def _collect(results: DataFrame) -> list[bytes]:
    outcomes: list[bytes] = results.select("outcome").toArrow().column(0).to_pylist()
    return outcomes


def _describe(session: SparkSession, text: str) -> None:
    """Have Spark's UI and event log say what its jobs are for."""
    context: Any = getattr(session, "_sc", None)
    if context is not None:
        context.setJobDescription(text)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else repr(error))[:500]
