"""Runs a job on Spark."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from postroad.core.backoff import backoff
from postroad.core.errors import ConfigError
from postroad.durable.store import Store
from postroad.pipeline.desk import Desk
from postroad.pipeline.job import Job
from postroad.pipeline.media.medium import InputMedium, OutputMedium
from postroad.pipeline.program import Program

from .addresses import place_driver
from .checkpoint import open_checkpoint
from .expressions import find_columns
from .host import DeskHost
from .order import Order
from .queries import Batches, Queries, Streaming
from .session import activate, has_jvm, start_spark, stop_spark
from .settings import SparkSettings
from .watching import Watch, wait_for_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("postroad.pipeline")

_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 60.0
# A query that ran so long without failing is well again.
_WELL_S = 60.0
# So many queries may fail in a row, and none settle anything, before functions are suspected.
_BARREN_MAX = 2
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
        bind: where the desk listens, instead of at the address that follows from the settings.
    """

    def __init__(
        self,
        job: Job,
        inputs: Mapping[str, InputMedium],
        outputs: Mapping[str, OutputMedium],
        store: Store,
        checkpoint: str | Path | None = None,
        settings: SparkSettings | None = None,
        *,
        session: SparkSession | None = None,
        bind: str | None = None,
    ) -> None:
        self._program = Program(job)
        self._inputs = inputs
        self._outputs = outputs
        self._store = store
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._settings = settings or SparkSettings()
        if bind is not None:
            self._settings = msgspec.structs.replace(self._settings, bind=bind)
        self._session = session
        self.desk = Desk(self._program, store, inputs, outputs)
        self._host: DeskHost
        # Those of several sessions are told apart by their numbers.
        self._batch_numbers = itertools.count(1)
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
            await self.desk.open()
            try:
                await self._run_hosted(run)
            finally:
                await self.desk.close()
        finally:
            if is_ours:
                await self._store.close()

    async def _run_hosted(self, run: str) -> None:
        self._settings = await asyncio.to_thread(self._place)
        self._host = DeskHost(
            self._program, self.desk, self._settings.bind, advertise=self._settings.advertise
        )
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
                self._settings.python_path,
            )
            if self._session is not None:
                await self._supervise(self._session, order)
            else:
                # Again if the JVM is gone, and the session with it.
                while not await self._with_session(order):
                    logger.warning("job %r starts Spark again", self._program.job.name)
        finally:
            await self._host.stop()

    def _place(self) -> SparkSettings:
        settings = self._settings
        if self._session is not None and hasattr(self._session, "_jsparkSession"):
            master = self._session.sparkContext.master
            settings = msgspec.structs.replace(settings, master=master)
        return place_driver(settings)

    async def _with_session(self, order: Order) -> bool:
        """Run the job in a session of its own; returns whether it is done."""
        session = await self._start_session()
        try:
            return await self._supervise(session, order)
        finally:
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
                    _tell(error),
                )
                await asyncio.sleep(pause_s)

    async def _supervise(self, session: SparkSession, order: Order) -> bool:
        """Run queries until the job is drained, again whenever one fails, as long as they can.

        Returns:
            Whether the job is done; otherwise the session is.
        """
        queries = await asyncio.to_thread(self._make_queries, session, order)
        watch = Watch(session, self._program.job.name, may_stop=self._session is None)
        failures = barren = 0
        while True:
            started_s, settled = time.monotonic(), self.desk.counts.batches
            failure = await watch.run(queries.run())
            if failure is None:
                return True
            if self._host.refusal is not None:
                raise ConfigError(self._host.refusal)
            self.restarts += 1
            if watch.is_lost:
                return False
            failures = 1 if time.monotonic() - started_s > _WELL_S else failures + 1
            pause_s = _pause_s(failures)
            barren = barren + 1 if self.desk.counts.batches == settled else 0
            if barren >= _BARREN_MAX:
                self._host.suspect_functions()
            logger.warning(
                "job %r failed on Spark and starts again in %.1f s: %s",
                self._program.job.name,
                pause_s,
                _tell(failure),
                exc_info=failure if logger.isEnabledFor(logging.DEBUG) else None,
            )
            await asyncio.sleep(pause_s)
            if self._session is None and not has_jvm(session):
                return False

    def _make_queries(self, session: SparkSession, order: Order) -> Queries:
        from .source import bind

        activate(session)
        name = f"postroad_{order.run}"
        order.columns = find_columns(session, self._program.job)
        session.dataSource.register(bind(name, order))
        if self._checkpoint is None:
            return Batches(session, name, order, self.desk, self._batch_numbers)
        return Streaming(session, name, order, self.desk, self._host, self._checkpoint)


def _pause_s(failures: int) -> float:
    return backoff(failures, first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S, chance=random.random())


def _tell(failure: BaseException) -> str:
    """What matters of what Spark says, which goes on for pages."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    own = [line for line in lines if _OWN_ERROR.match(line)]
    return (own[-1] if own else lines[0] if lines else repr(failure))[:_TEXT_MAX]
