"""Runs a job on Spark."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from postroad.core.backoff import backoff
from postroad.core.errors import ConfigError
from postroad.durable.store import Store
from postroad.pipeline.desk import Desk
from postroad.pipeline.job import Job
from postroad.pipeline.media.medium import InputMedium, OutputMedium
from postroad.pipeline.program import Program

from .checkpoint import open_checkpoint
from .host import DeskHost
from .order import Order
from .session import activate, start_spark, stop_spark
from .settings import SparkSettings
from .stages import add_stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("postroad.pipeline")

_LOOK_S = 0.05
_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 60.0
# A query that ran so long without failing is well again.
_WELL_S = 60.0
_TEXT_MAX = 500
# The last line of a traceback in a worker.
_OWN_ERROR = re.compile(r"[\w.]+(Error|Exception|Failure): ")


class SparkRunner:
    """Runs one job on Spark, as a stream of small batches.

        runner = SparkRunner(job, inputs, outputs, SqliteStore("job.db"), checkpoint="job.spark")
        await runner.run()

    Args:
        job: a valid one, whose functions can be imported everywhere.
        inputs: by the name of their task.
        outputs: the same.
        store: where the account is kept. It is opened and closed, if it is not open.
        checkpoint: a directory of this job alone, where Spark notes how far it is.
        settings: how to start Spark.
        session: a session that runs already, instead of one with these settings.
        bind: where the desk listens; on a cluster, an address that its machines can reach.
    """

    def __init__(
        self,
        job: Job,
        inputs: Mapping[str, InputMedium],
        outputs: Mapping[str, OutputMedium],
        store: Store,
        checkpoint: str | Path,
        settings: SparkSettings | None = None,
        *,
        session: SparkSession | None = None,
        bind: str = "127.0.0.1:0",
    ) -> None:
        self._program = Program(job)
        self._inputs = inputs
        self._outputs = outputs
        self._store = store
        self._checkpoint = Path(checkpoint)
        self._settings = settings or SparkSettings()
        self._session = session
        self.desk = Desk(self._program, store, inputs, outputs)
        self._host = DeskHost(self._program, self.desk, bind)
        self.restarts = 0
        """How often Spark's query failed and was started again."""

    async def run(self) -> None:
        """Run until bounded inputs are drained; for ever if one of them has no end."""
        run = open_checkpoint(self._checkpoint, self._program.job.name)
        is_ours = not self._store.is_open
        if is_ours:
            await self._store.open(self._program.job.name)
        try:
            await self.desk.open()
            try:
                await self._run_hosted(run)
            finally:
                await self.desk.close()
        finally:
            if is_ours:
                await self._store.close()

    async def _run_hosted(self, run: str) -> None:
        desk = await self._host.start()
        try:
            order = Order(
                self._program.job,
                self._inputs,
                self._outputs,
                desk,
                run,
                self._settings.partitions,
                self._settings.worker_bytes,
            )
            await self._with_session(lambda session: self._supervise(session, order))
        finally:
            await self._host.stop()

    async def _with_session(self, work: Callable[[SparkSession], Awaitable[None]]) -> None:
        if self._session is not None:
            await work(self._session)
            return
        starting = asyncio.ensure_future(asyncio.to_thread(start_spark, self._settings))
        try:
            session = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # What a thread does, nobody can stop; so it is awaited and undone.
            await asyncio.to_thread(stop_spark, await starting)
            raise
        try:
            await work(session)
        finally:
            await asyncio.to_thread(stop_spark, session)

    # Queries.

    async def _supervise(self, session: SparkSession, order: Order) -> None:
        """Run the query until the job is drained; again whenever it fails."""
        from .source import bind

        name = f"postroad_{order.run}"
        session.dataSource.register(bind(name, order))
        failures = 0
        while True:
            started_s = time.monotonic()
            failure = await self._run_query(session, order, name)
            if failure is None:
                return
            if self._host.refusal is not None:
                raise ConfigError(self._host.refusal)
            failures = 1 if time.monotonic() - started_s > _WELL_S else failures + 1
            pause_s = backoff(
                failures, first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S, chance=random.random()
            )
            self.restarts += 1
            logger.warning(
                "job %r failed on Spark and starts again in %.1f s: %s",
                self._program.job.name,
                pause_s,
                failure,
            )
            await asyncio.sleep(pause_s)

    async def _run_query(self, session: SparkSession, order: Order, name: str) -> str | None:
        """Run a query until the job is drained; returns what it failed with, if it did."""
        starting = asyncio.to_thread(self._start_query, session, order, name)
        try:
            query = await starting
        except Exception as error:
            logger.debug("the query did not start", exc_info=True)
            return _first_line(error)
        try:
            while await asyncio.to_thread(lambda: query.isActive):
                # A query that is stopped in the middle of a batch complains.
                if self._host.is_idle and await self.desk.is_drained():
                    return None
                await asyncio.sleep(_LOOK_S)
            return _first_line(await asyncio.to_thread(query.exception))
        finally:
            await asyncio.to_thread(query.stop)

    def _start_query(self, session: SparkSession, order: Order, name: str) -> StreamingQuery:
        activate(session)
        deliveries = session.readStream.format(name).load()
        rows = add_stages(deliveries, order, len(self._program.graph.stages))
        return (
            rows.writeStream.format(name)
            .option("checkpointLocation", str(self._checkpoint / "spark"))
            .queryName(self._program.job.name)
            .trigger(processingTime="0 seconds")
            .start()
        )


def _first_line(error: BaseException | None) -> str:
    """What matters of what Spark says, which goes on for pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if _OWN_ERROR.match(line)]
    return (own[-1] if own else lines[0] if lines else "it ended by itself")[:_TEXT_MAX]
