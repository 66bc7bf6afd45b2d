"""Tasks of kind `dataframe`: functions from one DataFrame to another, with all that a batch has.

A batch with such tasks is done in parts, each one action that writes its rows to a directory. The
first takes the segments up to these tasks. Each further part calls one function with what earlier
parts have gathered for it; its rows are new roots, and go on as what a reader gives. All parts are
committed together. What a killed attempt has written is never read.

A function that raises fails for all segments that it was called with. If Spark fails with what it
returned, nobody knows whether Spark or a segment is to blame. So the batch is done again; if it
fails again and again, the function is called with ever smaller shares of the segments, and fails
for those with which nothing else helps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.functions import InvalidResultError
from postroad.pipeline.spark.heartbeat import BEAT_S
from postroad.pipeline.spark.job_pass import add_passes, fail_gathered
from postroad.pipeline.spark.result_rows import output_label, result_ddl
from postroad.pipeline.spark.spark_inputs import to_input_rows
from postroad.pipeline.spark.watching import summarize_failure
from postroad.pipeline.spark.worker_context import WorkerContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("postroad.pipeline")

# So often a function is called for one batch to find the segments that it fails with: enough to
# find one among as many as fit into a batch.
_CALLS_MAX = 64


class BatchInParts:
    """Does one batch of a job with functions of DataFrames.

    Args:
        session: that of the batch.
        context: the job.
        staged: where rows of the batch go, and which batch it is; gets the names of its parts.
    """

    def __init__(self, session: SparkSession, context: WorkerContext, staged: Committable) -> None:
        self._session = session
        self._context = context
        self._staged = staged
        self._parts: list[str] = staged.setdefault("parts", [])
        self._functions = context.compile().functions

    def run(self, results: DataFrame) -> DataFrame:
        """Do everything; returns the rows of all parts."""
        self._write(results)
        with _signs_of_life(self._context.coordinator.report_progress):
            for name in self._context.dataframe_tasks:
                rows = self._read()
                gathered = rows.where(rows["task"] == output_label(self._context, name))
                if not gathered.isEmpty():
                    self._run_task(name, gathered)
        return self._read()

    def _run_task(self, name: str, gathered: DataFrame) -> None:
        shares, calls = [(1, 0)], 0
        while shares:
            count, number = shares.pop()
            share = _share(gathered, count, number)
            if count > 1 and share.isEmpty():
                continue
            calls += 1
            try:
                rows = self._call(name, share)
            except Exception as error:
                self._check_session(error)
                self._fail(share, error)
                continue
            try:
                self._write(add_passes(rows, self._context))
            except Exception as error:
                if not self._context.coordinator.is_isolated():
                    raise
                self._check_session(error)
                if calls + len(shares) < _CALLS_MAX and share.limit(2).count() > 1:
                    shares += [(2 * count, number), (2 * count, number + count)]
                else:
                    self._fail(share, error)

    def _call(self, name: str, gathered: DataFrame) -> DataFrame:
        """What a function makes of its segments, as rows that come into the job."""
        from pyspark.sql import functions as f

        function, label = self._functions[name], output_label(self._context, name)
        assert function is not None
        made: Any = function(gathered.select(f"{label}.*"))
        if not hasattr(made, "mapInArrow"):
            raise InvalidResultError(
                f"a function of kind 'dataframe' returns a DataFrame, not {type(made).__name__}"
            )
        if made.isStreaming:
            raise InvalidResultError("it returned a DataFrame of a stream, which has no end")
        if repeated := sorted({it for it in made.columns if made.columns.count(it) > 1}):
            raise InvalidResultError(f"it returned several columns named {repeated[0]!r}")
        # Done again, a row has the same id: what it has decides, and not its place among others.
        which = [self._staged["run"], self._staged["batch"], len(self._parts)]
        columns = f.struct(*(f.col(_quoted(it)) for it in made.columns))
        identity = [*map(f.lit, which), f.spark_partition_id(), f.to_json(columns)]
        place = self._context.graph.order.index(name)
        return to_input_rows(made, self._context.graph.tasks[name], place, identity)

    def _fail(self, gathered: DataFrame, error: Exception) -> None:
        reason = f"{type(error).__name__}: {summarize_failure(error)}"
        ddl = result_ddl(self._context)
        self._write(gathered.mapInArrow(fail_gathered(self._context, reason), ddl))

    def _check_session(self, error: Exception) -> None:
        """Raise what went wrong if Spark is to blame: it cannot do anything else either."""
        try:
            self._session.range(1).count()
        except Exception:
            raise error from None

    def _write(self, rows: DataFrame) -> None:
        """Write a part: all of it, or nothing that anybody reads."""
        name = f"part={len(self._parts)}"
        path = f"{self._staged['path']}/{name}"
        rows.write.mode("overwrite").partitionBy("task").parquet(path)
        self._parts.append(name)

    def _read(self) -> DataFrame:
        base = str(self._staged["path"])
        reader = self._session.read.schema(result_ddl(self._context)).option("basePath", base)
        return reader.parquet(*(f"{base}/{name}" for name in self._parts))


def _share(rows: DataFrame, count: int, number: int) -> DataFrame:
    """One of as many shares, the same at every time."""
    from pyspark.sql import functions as f

    if count == 1:
        return rows
    return rows.where(f.pmod(f.xxhash64("gathered"), f.lit(count)) == number)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def _signs_of_life(send: Callable[[], None]) -> Iterator[None]:
    """Say that a batch is worked on while Spark is at it without Python."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(BEAT_S):
            try:
                send()
            except Exception:
                logger.debug("a sign of life was lost", exc_info=True)

    threading.Thread(target=beat, name="dataframes", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
