"""A job as queries of Spark: one that goes on for ever, or one after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.spark.batches import BatchProcessor, Settling
from postroad.pipeline.spark.coordinator_server import CoordinatorServer
from postroad.pipeline.spark.session import activate
from postroad.pipeline.spark.spark_inputs import read_once, read_stream
from postroad.pipeline.spark.window_query import start_window_query
from postroad.pipeline.spark.worker_context import WorkerContext
from postroad.pipeline.windows.partials import PartialWindow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("postroad.pipeline")

_LOOK_S = 0.05
_WAIT_S = 1.0
# Executors come and go.
_ADAPT_S = 2.0
# Spark asks all sources for what they have, then ours once more: the others had nothing.
_IDLE_POLLS = 2


class BatchExpired(Exception):
    """A batch hangs."""


class QueryRunner(Protocol):
    """Runs a job until it is drained."""

    async def run(self) -> BaseException | None:
        """Run until the job is drained; returns what failed, if anything did."""


class StreamingQueryRunner(QueryRunner):
    """One query with a batch after the other, each a fraction of a second after what it brings.

    Args:
        session: where it runs.
        name: under which the job's source is registered.
        context: the job.
        coordinator: of the job.
        server: of the coordinator.
        checkpoint: where Spark notes how far it is.
        processor: what does a batch.
        limit_s: how long workers may give no sign of life within a batch.
        window_checkpoints: where Spark keeps what windows hold.
        adapt: called now and then to have batches fit the cluster.
    """

    def __init__(
        self,
        session: SparkSession,
        name: str,
        context: WorkerContext,
        coordinator: JobCoordinator,
        server: CoordinatorServer,
        checkpoint: str,
        processor: BatchProcessor,
        limit_s: float,
        window_checkpoints: str,
        adapt: Callable[[], None],
    ) -> None:
        self._session = session
        self._name = name
        self._context = context
        self._coordinator = coordinator
        self._server = server
        self._adapt = adapt
        self._checkpoint = checkpoint
        self._processor = processor
        self._limit_s = limit_s
        self._window_checkpoints = window_checkpoints

    async def run(self) -> BaseException | None:
        from py4j.protocol import Py4JError

        self._server.begin_query()
        queries: list[StreamingQuery] = []
        settling = Settling()
        if hasattr(self._session, "_jsparkSession"):
            self._processor.settling = settling
        adapted_s = 0.0
        try:
            await asyncio.to_thread(self._start_all, queries)
        except Exception as error:
            await asyncio.to_thread(_stop, queries)
            return error
        try:
            while (ended := await asyncio.to_thread(_find_ended, queries)) is None:
                if settling.failure is not None:
                    return settling.failure
                # A query that is stopped in the middle of a batch complains.
                if await self._is_done():
                    return None
                if (silent_s := self._server.silent_s) > self._limit_s:
                    self._server.enable_isolation()
                    return BatchExpired(
                        f"no worker gave a sign of life for {silent_s:.0f} s; the batch is given "
                        "up and done again, each function in a process of its own"
                    )
                if time.monotonic() - adapted_s > _ADAPT_S:
                    await asyncio.to_thread(self._adapt)
                    adapted_s = time.monotonic()
                await asyncio.sleep(_LOOK_S)
            return await asyncio.to_thread(ended.exception) or RuntimeError("it ended by itself")
        except (Py4JError, OSError) as error:
            # The JVM is gone.
            return error
        finally:
            await asyncio.to_thread(_stop, queries)
            await asyncio.to_thread(settling.wait)

    async def _is_done(self) -> bool:
        # Once more at the end, as meanwhile a batch may have added to windows.
        return (
            await self._is_at_rest()
            and await self._coordinator.is_drained()
            and await self._is_at_rest()
        )

    async def _is_at_rest(self) -> bool:
        return self._is_idle and await self._server.are_windows_idle()

    @property
    def _is_idle(self) -> bool:
        polls = _IDLE_POLLS if self._context.spark_inputs else 1
        return self._server.is_idle and self._server.idle_polls >= polls

    def _start_all(self, queries: list[StreamingQuery]) -> None:
        """Start all queries; those that are started are in the list, whatever happens."""
        queries.append(self._start())
        windows = self._coordinator.spark_windows.windows.values()
        queries.extend(map(self._start_window, windows))

    def _start_window(self, window: PartialWindow) -> StreamingQuery:
        activate(self._session)
        checkpoint = f"{self._window_checkpoints}/{quote(window.window.name, safe='')}"
        directory = str(self._context.window_files)
        return start_window_query(self._session, self._context, window, checkpoint, directory)

    def _start(self) -> StreamingQuery:
        activate(self._session)
        sources = [self._session.readStream.format(self._name).load()]
        for name in self._context.spark_inputs:
            place = self._context.graph.order.index(name)
            sources.append(read_stream(self._session, self._context.graph.tasks[name], place))
        return (
            reduce(_union, sources)
            .writeStream.foreachBatch(self._processor)
            .option("checkpointLocation", self._checkpoint)
            .queryName(self._context.job_name)
            .trigger(processingTime="0 seconds")
            .start()
        )


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right, allowMissingColumns=True)


def _find_ended(queries: Sequence[StreamingQuery]) -> StreamingQuery | None:
    return next((query for query in queries if not query.isActive), None)


def _stop(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        try:
            query.stop()
        except Exception:
            # Of several kinds, as it comes from sockets, py4j or Java. Whoever terminates this
            # process often terminates the JVM as well, and its queries end with it.
            logger.debug("a query could not be stopped", exc_info=True)


class BatchQueryRunner(QueryRunner):
    """A query for all that there is, then one for what came again: for inputs that have an end.

    Args:
        session: where they run.
        name: under which the job's source is registered.
        context: the job.
        coordinator: of the job.
        processor: what does a batch.
        numbers: what batches are told apart by, those of earlier sessions included.
    """

    def __init__(
        self,
        session: SparkSession,
        name: str,
        context: WorkerContext,
        coordinator: JobCoordinator,
        processor: BatchProcessor,
        numbers: Iterator[int],
    ) -> None:
        self._session = session
        self._name = name
        self._context = context
        self._coordinator = coordinator
        self._processor = processor
        self._numbers = numbers
        # Spark's own readers are read once, with the first batch.
        self._unread = list(context.spark_inputs)

    async def run(self) -> BaseException | None:
        while True:
            while await self._coordinator.next_deliveries():
                continue
            if self._unread or await self._coordinator.uncommitted():
                upto = await self._coordinator.last_delivery()
                try:
                    await asyncio.to_thread(self._work, upto, next(self._numbers))
                except Exception as error:
                    return error
            elif await self._coordinator.is_drained():
                return None
            else:
                await self._coordinator.wait(_WAIT_S)

    def _work(self, upto: int, batch: int) -> None:
        activate(self._session)
        sources = [self._session.read.format(self._name).option("upto", str(upto)).load()]
        for name in self._unread:
            place = self._context.graph.order.index(name)
            sources.append(read_once(self._session, self._context.graph.tasks[name], place))
        self._processor(reduce(_union, sources), batch)
        self._unread = []
