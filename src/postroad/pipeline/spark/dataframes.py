"""Tasks of kind `dataframe`: functions from one DataFrame to another, with all that a batch has.

A batch with such tasks is done in parts, each one action that writes its rows to a directory. The
first takes the segments up to these tasks. Each further part calls one function with what earlier
parts have gathered for it; its rows are new roots, and go on as what a reader gives. All parts are
committed together. What a killed attempt has written is never read.

A function that raises fails for all segments that it was called with. If Spark fails with what it
returned, nobody knows whether Spark or a segment is to blame. So the batch is done again; if it
fails again and again, the function is called with ever smaller shares of the segments, and fails
for those with which nothing else helps.

A function with a time limit has that time for a call and for what Spark does with its result. Then
the Spark jobs of both are cancelled, and the segments of the call fail.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.functions import InvalidResultError
from postroad.pipeline.spark.heartbeat import BEAT_S
from postroad.pipeline.spark.job_pass import add_passes, fail_gathered
from postroad.pipeline.spark.result_rows import output_label, result_ddl
from postroad.pipeline.spark.session import activate
from postroad.pipeline.spark.spark_inputs import to_input_rows
from postroad.pipeline.spark.watching import summarize_failure
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.time_limits import (
    FunctionTimeoutError,
    forget_interruption,
    interrupt_thread,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("postroad.pipeline")

# So often a function is called for one batch to find the segments that it fails with: enough to
# find one among as many as fit into a batch.
_CALLS_MAX = 64
# So long a call may take to end when its Spark jobs were cancelled, and when it was interrupted.
_CANCEL_S = 5.0
_INTERRUPT_S = 1.0

T = TypeVar("T")


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
        self._writes = 0
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
            clock = _BatchClock(self._session, name, self._context.graph.tasks[name].time_limit_s)
            try:
                rows = clock.run(lambda share=share: self._call(name, share))  # type: ignore[misc]
            except Exception as error:
                self._check_session(error)
                self._fail(share, error)
                continue
            try:
                self._write(add_passes(rows, self._context), clock)
            except FunctionTimeoutError as error:
                self._check_session(error)
                self._fail(share, error)
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

    def _write(self, rows: DataFrame, clock: _BatchClock | None = None) -> None:
        """Write a part: all of it, or nothing that anybody reads."""
        # One that was given up may still be written to.
        self._writes += 1
        name = f"part={self._writes}"
        path = f"{self._staged['path']}/{name}"
        writer = rows.write.mode("overwrite").partitionBy("task")
        if clock is None:
            writer.parquet(path)
        else:
            clock.run(lambda: writer.parquet(path))
        self._parts.append(name)

    def _read(self) -> DataFrame:
        base = str(self._staged["path"])
        reader = self._session.read.schema(result_ddl(self._context)).option("basePath", base)
        return reader.parquet(*(f"{base}/{name}" for name in self._parts))


class _BatchClock:
    """The time that a function of DataFrames has for a batch.

    Args:
        session: that of the batch.
        task: the name of the task.
        limit_s: its time limit, if it has one.
    """

    def __init__(self, session: SparkSession, task: str, limit_s: float | None) -> None:
        self._session = session
        self._task = task
        self._limit_s = limit_s
        self._started_s = time.monotonic()

    def run(self, call: Callable[[], T]) -> T:
        """Call something that may start jobs of Spark; if it takes too long these are cancelled.

        Raises:
            FunctionTimeoutError: the time is over.
        """
        if self._limit_s is None:
            return call()
        from pyspark.util import InheritableThread

        results: list[T] = []
        errors: list[BaseException] = []
        tag, context = f"postroad-{secrets.token_hex(8)}", getattr(self._session, "_sc", None)

        def run_tagged() -> None:
            try:
                activate(self._session)
                # Through Spark Connect there is no context.
                (self._session.addTag if context is None else context.addJobTag)(tag)
                results.append(call())
            except BaseException as error:
                errors.append(error)

        # Of its own: nobody can end a call into C. Tags leave the job group of the query as it is.
        thread = InheritableThread(run_tagged, session=self._session, daemon=True)
        thread.start()
        thread.join(max(self._started_s + self._limit_s - time.monotonic(), 0.0))
        if thread.is_alive():
            (self._session.interruptTag if context is None else context.cancelJobsWithTag)(tag)
            _end(thread)
            raise FunctionTimeoutError(
                f"task {self._task!r} took more than {self._limit_s:g} s for a batch"
            )
        if errors:
            raise errors[0]
        return results[0]


def _end(thread: threading.Thread) -> None:
    """Have a thread end whose Spark jobs were cancelled; one that does not is left alone."""
    thread.join(_CANCEL_S)
    if thread.is_alive() and thread.ident is not None:
        interrupt_thread(thread.ident)
        thread.join(_INTERRUPT_S)
        if thread.is_alive():
            forget_interruption(thread.ident)


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
