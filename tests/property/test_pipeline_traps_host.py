"""What the desk that Spark asks must not fall for: commits of what is no longer theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from postroad.core.errors import RemoteHandlerError
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.spark.coordinator_client import (
    CoordinatorClient,
    PartitionResults,
    desk_client,
)
from postroad.pipeline.spark.coordinator_server import CoordinatorServer
from postroad.pipeline.vectorized.partition import PartitionResult, encode_part
from tests.support.pipeline.desk_jobs import (
    OpenDesk,
    count_to,
    input_task,
    job_of,
    numbers,
    open_desk,
)

T = TypeVar("T")
JOB = job_of(input_task(batch_size=3))


class Hosted:
    """A desk, and one of Spark's processes that asks it."""

    def __init__(self, desk: OpenDesk, client: CoordinatorClient) -> None:
        self.desk = desk
        self._client = client

    async def ask(self, question: Callable[[CoordinatorClient], T]) -> T:
        return await asyncio.to_thread(question, self._client)

    async def settle(self, batch: int, parts: Iterable[bytes]) -> None:
        await self.ask(
            lambda client: client.commit_batch("run", batch, PartitionResults(list(parts), []))
        )

    async def do(self, name: str, deliveries: Iterable[InputDelivery]) -> bytes:
        """A part of a batch that has written all of some deliveries."""
        those = list(deliveries)
        staged = await self.desk.stage(name, those)
        return encode_part(PartitionResult([it.number for it in those], staged=staged))


@asynccontextmanager
async def hosted() -> AsyncIterator[Hosted]:
    async with open_desk(JOB, {"in": count_to(9)}) as it:
        host = CoordinatorServer(CompiledJob(JOB), it.desk)
        address = await host.start()
        try:
            client = await asyncio.to_thread(desk_client, address)
            yield Hosted(it, client)
        finally:
            await host.stop()


async def test_a_batch_with_a_delivery_that_is_gone_is_refused_as_a_whole() -> None:
    """A driver that was taken for dead commits a batch of which a part was delivered again and
    settled elsewhere. If the desk only left out what it does not know any more, all outputs of the
    batch would be published, and some of them for the second time.
    """
    async with hosted() as it:
        deliveries = [one for _ in range(3) for one in await it.desk.desk.next_deliveries()]
        gone, mine, other = deliveries
        await it.settle(0, [await it.do("first", [gone])])
        await it.settle(1, [await it.do("late", [gone, mine]), await it.do("rest", [other])])
        assert numbers(it.desk.output) == [0, 1, 2]
        assert not it.desk.output.staged
        latest = await it.desk.desk.last_delivery()
        (again,) = await it.ask(lambda client: client.plan_partitions(0, latest))
        assert [one.position for one in again] == [mine.position, other.position]
        assert [one.generation for one in again] == [1, 1]
        await it.settle(2, [await it.do("again", again)])
        assert numbers(it.desk.output) == list(range(9))


async def test_a_batch_that_spark_does_again_counts_once() -> None:
    """Spark does a batch again if it crashed before it noted the commit. The desk knows that the
    batch is settled, and throws the second edition away.
    """
    async with hosted() as it:
        deliveries = await it.desk.desk.next_deliveries()
        await it.settle(0, [await it.do("first", deliveries)])
        await it.settle(0, [await it.do("second", deliveries)])
        assert numbers(it.desk.output) == [0, 1, 2]
        assert it.desk.output.discarded == ["second"]
        assert it.desk.desk.counts.acked == 3


async def test_spark_begins_before_the_first_delivery_that_is_open() -> None:
    """A checkpoint that is new, or was lost, begins where the desk says. Behind what is still open
    would skip it; before what is settled is only more work.
    """
    async with hosted() as it:
        deliveries = [one for _ in range(3) for one in await it.desk.desk.next_deliveries()]
        await it.settle(0, [await it.do("second", deliveries[1:2])])
        first = await it.ask(lambda client: client.initial_offset())
        latest = await it.desk.desk.last_delivery()
        assert await it.ask(lambda client: client.plan_partitions(first, latest)) == [
            [deliveries[0], deliveries[2]]
        ]


async def test_what_was_left_at_the_desk_counts_like_what_came_with_the_commit() -> None:
    """Large parts go to the desk by themselves. Of one that the desk does not have, it must not
    settle the rest.
    """
    async with hosted() as it:
        deliveries = await it.desk.desk.next_deliveries()
        part = await it.do("first", deliveries)
        with pytest.raises(RemoteHandlerError, match="not all parts of batch 0 are here"):
            await it.ask(
                lambda client: client.commit_batch("run", 0, PartitionResults([], ["one"]))
            )
        await it.ask(lambda client: client.store_result("one", part))
        await it.ask(lambda client: client.commit_batch("run", 0, PartitionResults([], ["one"])))
        assert numbers(it.desk.output) == [0, 1, 2]
        assert it.desk.desk.counts.acked == 3
