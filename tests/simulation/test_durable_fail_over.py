"""A copy that lacks commits takes the place of the database, while a node works on it.

Whatever the node goes on with is one history: of the commits that one process acknowledged, the
database has none after one that it lost. What the copy has is handled once.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from postroad.core.errors import StoreError, TransactionAbortedError
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    MemoryDisk,
    Message,
    OutgoingMessage,
    Transaction,
)
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.schema import read_meta, write_meta
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.testing import LivenessFailure, SimCluster
from tests.simulation.durable.process import Machine
from tests.support.tiers import by_tier

QUEUE = "orders"
ORDERS = 40
SEEDS = by_tier(test=12, nightly=200)
TABLES = (
    "CREATE TABLE IF NOT EXISTS handled (number INTEGER)",
    "CREATE TABLE IF NOT EXISTS log (life INTEGER, number INTEGER)",
)


class Shop:
    """A node that handles its own orders, and keeps a log of what else it commits."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self._rng = Random(f"{sim.seed}/shop")
        self._lives = 0
        self.machine = Machine(
            sim, "shop", DurableQueuesConfig(batch_messages_max=3), (QUEUE,), self._run
        )

    @property
    def disk(self) -> MemoryDisk:
        return self.machine.disk

    async def _run(self, mail: DurableQueues) -> None:
        self._lives += 1
        async with mail.transaction() as tx:
            for table in TABLES:
                await tx.execute(table)
        if self._lives == 1:
            orders = [
                OutgoingMessage(to="shop", queue=QUEUE, body=b"%d" % number)
                for number in range(ORDERS)
            ]
            await mail.send_many(orders)
        await mail.consume(QUEUE, self._handle, concurrency=4)
        writing = asyncio.create_task(self._write_log(mail, self._lives))
        try:
            # As whoever looks after the process of a node would do.
            raise await asyncio.shield(mail.store.ended)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _handle(self, message: Message, tx: Transaction) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        await tx.execute("INSERT INTO handled VALUES (?)", (int(message.body),))

    async def _write_log(self, mail: DurableQueues, life: int) -> None:
        number = 0
        while True:
            await asyncio.sleep(self._rng.uniform(0.0, 0.2))
            try:
                async with mail.transaction() as tx:
                    await tx.execute("INSERT INTO log VALUES (?, ?)", (life, number))
            except (StoreError, TransactionAbortedError):
                continue
            number += 1

    def rows(self, statement: str) -> list[tuple[int, ...]]:
        return self.disk.execute(statement).fetchall()


def tell_story(seed: int) -> None:
    """Copy at some moment, fail over at a later one, and see what became of everything."""
    rng = Random(f"{seed}/story")
    with SimCluster(seed) as sim:
        shop = Shop(sim)
        shop.machine.start()
        sim.run_for(rng.uniform(0.5, 2.0))
        while shop.disk.is_in_transaction:
            sim.run_for(0.001)
        copy = shop.disk.backup()
        sim.run_for(rng.choice((0.0, rng.uniform(0.0, 3.0))))
        shop.disk.fail_over(copy)
        sim.run_until(
            lambda: len(shop.rows("SELECT DISTINCT number FROM handled")) == ORDERS,
            timeout=60.0,
            description="all orders are handled",
        )
        sim.run_for(2.0)
        handled = sorted(number for (number,) in shop.rows("SELECT number FROM handled"))
        assert handled == list(range(ORDERS)), "handled once"
        for life in range(1, shop._lives + 1):
            log = [number for (number,) in shop.rows(f"SELECT number FROM log WHERE life = {life}")]
            assert log == list(range(len(log))), f"the log of life {life} has a gap"


def test_node_whose_database_loses_commits_goes_on_from_what_it_has() -> None:
    for seed in range(SEEDS):
        tell_story(seed)


def test_stories_need_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that trusts its memory is found out."""

    def begin(ledger: StoreTables, now_ms: int) -> None:
        ledger.now_ms = now_ms
        ledger.database.begin()
        ledger._next_mark = str(ledger.commits + 1)
        write_meta(ledger.database, ledger._mark_key, ledger._next_mark)

    def has_happened(ledger: StoreTables, database: StoreConnection | None = None) -> bool:
        return read_meta(ledger.database, ledger._mark_key) == ledger._next_mark

    monkeypatch.setattr(StoreTables, "begin", begin)
    monkeypatch.setattr(StoreTables, "is_last_commit_durable", has_happened)
    failures = 0
    for seed in range(SEEDS):
        try:
            tell_story(seed)
        except (AssertionError, LivenessFailure):
            failures += 1
    assert failures
