"""A job as queries of Spark: one that goes on for ever, or one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from postroad.pipeline.desk import Desk

from .host import DeskHost
from .order import Order
from .session import activate
from .stages import add_stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("postroad.pipeline")

_LOOK_S = 0.05
_WAIT_S = 1.0


class Queries(Protocol):
    """Runs a job until it is drained."""

    async def run(self) -> BaseException | None:
        """Run until the job is drained; returns what failed, if anything did."""


class Streaming(Queries):
    """One query with a batch after the other, each a fraction of a second after what it brings.

    Args:
        session: where it runs.
        name: under which the job's source and sink are registered.
        order: the job.
        desk: of the job.
        host: of the desk.
        checkpoint: where Spark notes how far it is.
    """

    def __init__(
        self,
        session: SparkSession,
        name: str,
        order: Order,
        desk: Desk,
        host: DeskHost,
        checkpoint: Path,
    ) -> None:
        self._session = session
        self._name = name
        self._order = order
        self._desk = desk
        self._host = host
        self._checkpoint = checkpoint

    async def run(self) -> BaseException | None:
        from py4j.protocol import Py4JError

        try:
            query = await asyncio.to_thread(self._start)
        except Exception as error:
            return error
        try:
            while await asyncio.to_thread(lambda: query.isActive):
                # A query that is stopped in the middle of a batch complains.
                if self._host.is_idle and await self._desk.is_drained():
                    return None
                await asyncio.sleep(_LOOK_S)
            return await asyncio.to_thread(query.exception) or RuntimeError("it ended by itself")
        except (Py4JError, OSError) as error:
            # The JVM is gone.
            return error
        finally:
            await asyncio.to_thread(_stop, query)

    def _start(self) -> StreamingQuery:
        activate(self._session)
        deliveries = self._session.readStream.format(self._name).load()
        return (
            add_stages(deliveries, self._order)
            .writeStream.format(self._name)
            .option("checkpointLocation", str(self._checkpoint / "spark"))
            .queryName(self._order.job_name)
            .trigger(processingTime="0 seconds")
            .start()
        )


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception:
        # Of several kinds, as it comes from sockets, py4j or Java. Whoever terminates this process
        # often terminates the JVM as well, and its queries end with it.
        logger.debug("a query could not be stopped", exc_info=True)


class Batches(Queries):
    """A query for all that there is, then one for what came again: for inputs that have an end.

    Args:
        session: where they run.
        name: under which the job's source and sink are registered.
        order: the job.
        desk: of the job.
        numbers: what the desk tells its batches apart by, those of earlier sessions included.
    """

    def __init__(
        self,
        session: SparkSession,
        name: str,
        order: Order,
        desk: Desk,
        numbers: Iterator[int],
    ) -> None:
        self._session = session
        self._name = name
        self._order = order
        self._desk = desk
        self._numbers = numbers

    async def run(self) -> BaseException | None:
        while True:
            while await self._desk.admit():
                continue
            if await self._desk.unsettled():
                upto = await self._desk.delivered()
                try:
                    await asyncio.to_thread(self._work, upto, next(self._numbers))
                except Exception as error:
                    return error
            elif await self._desk.is_drained():
                return None
            else:
                await self._desk.wait(_WAIT_S)

    def _work(self, upto: int, batch: int) -> None:
        activate(self._session)
        deliveries = self._session.read.format(self._name).option("upto", str(upto)).load()
        rows = add_stages(deliveries, self._order)
        rows.write.format(self._name).option("batch", str(batch)).mode("append").save()
