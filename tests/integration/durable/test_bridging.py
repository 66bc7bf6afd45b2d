"""What a bridge reads of the store: not what it was told of a moment ago."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad.durable import OutgoingMessage, SqliteStore
from postroad.durable.store.tables import queries as query
from tests.support.durable.mail_pairs import (
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    running_station,
    until_empty,
)


class CountingStore(SqliteStore):
    """Counts what is read of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: Counter[Any] = Counter()

    async def read(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.reads[function] += 1
        return await super().read(function, *args, **kwargs)


@asynccontextmanager
async def served(
    count: int, directory: Path
) -> AsyncIterator[tuple[CountingStore, Station, Recorder]]:
    """Alpha with its store, and what arrives at beta: so many letters until now."""
    store = CountingStore(directory / "alpha.db")
    async with (
        running_station("beta", directory) as beta,
        running_station("alpha", store, beta) as alpha,
    ):
        recorder = await Recorder.at(beta)
        await post_numbers(alpha, "beta", range(count))
        await recorder.until(count)
        await until_empty(alpha.mail, "beta")
        yield store, alpha, recorder


async def test_recent_batches_are_sent_from_memory(tmp_path: Path) -> None:
    async with served(1, tmp_path) as (store, alpha, recorder):
        before = store.reads[query.read_outbox_batches_of_epoch]
        for number in range(1, 21):
            await post_numbers(alpha, "beta", [number])
            await recorder.until(number + 1)
        await until_empty(alpha.mail, "beta")
        assert numbers_of(recorder.bodies) == list(range(21))
        assert store.reads[query.read_outbox_batches_of_epoch] == before


async def test_batches_beyond_memory_limit_are_read_from_store(tmp_path: Path) -> None:
    async with served(1, tmp_path) as (store, alpha, recorder):
        before = store.reads[query.read_outbox_batches_of_epoch]
        sizes = [300_000 + index for index in range(12)]
        await alpha.mail.send_many(
            [OutgoingMessage(to="beta", queue="orders", body=bytes(size)) for size in sizes]
        )
        assert list(map(len, await recorder.until(13)))[1:] == sizes
        await until_empty(alpha.mail, "beta")
        assert store.reads[query.read_outbox_batches_of_epoch] > before


async def test_a_bridge_that_was_paused_reads_what_waits(tmp_path: Path) -> None:
    async with served(3, tmp_path) as (store, alpha, recorder):
        before = store.reads[query.read_outbox_batches_of_epoch]
        await alpha.mail.bridges.pause("beta")
        await post_numbers(alpha, "beta", range(3, 6))
        await alpha.mail.bridges.resume("beta")
        assert numbers_of(await recorder.until(6)) == list(range(6))
        assert store.reads[query.read_outbox_batches_of_epoch] > before
