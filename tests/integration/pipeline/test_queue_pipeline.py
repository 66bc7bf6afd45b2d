"""Jobs on queues of real nodes: whatever dies, each message is handled once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from postroad.core.errors import UsageError
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    MemoryStore,
    Message,
    OutgoingMessage,
    SqliteStore,
    StaticPeerDirectory,
    Transaction,
)
from postroad.net import MessagingService
from postroad.pipeline import LocalRunner, QueueInput, QueueOutput
from tests.integration.pipeline.payments_node import (
    ALPHA,
    BETA,
    BOOKED,
    CLUSTER,
    CONFIG,
    JOB,
    PAYMENTS,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.source_tree import ROOT

MESSAGES = 20_000
# Payments of nothing, which nobody can book.
POISON_EVERY = 2_000


class Beta:
    """The process that runs the job, as often as it is started."""

    def __init__(self, directory: Path, alpha: DurableQueues, peers: StaticPeerDirectory) -> None:
        self.directory = directory
        self._alpha = alpha
        self._peers = peers
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.pipeline.payments_node"),
            *(self.directory, str(self._alpha.service.address)),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), DEADLINE_S)
        assert line, "beta did not start"
        self._peers.set(BETA, line.decode().strip())

    async def kill(self) -> None:
        """End it the hard way."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        # The pipes' transports are closed by the loop only after this turn.
        self._process._transport.close()  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Have it end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await asyncio.wait_for(self._process.wait(), DEADLINE_S) == 0
        await self.kill()


@asynccontextmanager
async def alpha_and_beta(directory: Path) -> AsyncIterator[tuple[DurableQueues, Beta]]:
    peers = StaticPeerDirectory()
    store = SqliteStore(directory / "alpha.db")
    async with (
        MessagingService(CLUSTER, ALPHA) as service,
        DurableQueues(service, store, directory=peers, config=CONFIG) as mail,
    ):
        beta = Beta(directory, mail, peers)
        await beta.start()
        try:
            yield mail, beta
        finally:
            await beta.kill()


async def post_payments(mail: DurableQueues) -> None:
    for start in range(0, MESSAGES, 1_000):
        await mail.send_many(
            OutgoingMessage(
                to=BETA, queue=PAYMENTS, body=msgspec.json.encode({"n": n, "amount": amount})
            )
            for n in range(start, start + 1_000)
            for amount in [0 if n % POISON_EVERY == 0 else n % 1_000 + 1]
        )


async def until_booked(mail: DurableQueues, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            queues = (await mail.statistics()).queues
            if BOOKED in queues and queues[BOOKED].depth >= count:
                return
            await asyncio.sleep(0.02)


def look_at_beta(directory: Path) -> tuple[int, ...]:
    """Messages in its queue, deliveries that are not settled, segments that wait, dead ones."""
    counts = (
        "SELECT COALESCE(SUM(pending), 0) FROM postroad_inbox",
        "SELECT COUNT(*) FROM postroad_pipeline_deliveries",
        "SELECT COUNT(*) FROM postroad_pipeline_roots WHERE state = 'waiting'",
        "SELECT COUNT(*) FROM postroad_pipeline_roots WHERE state = 'dead'",
    )
    with closing(sqlite3.connect(directory / "beta.db", timeout=DEADLINE_S)) as connection:
        return tuple(connection.execute(it).fetchone()[0] for it in counts)


async def until_drained(directory: Path) -> None:
    await eventually(lambda: not any(look_at_beta(directory)[:3]), "beta has done everything")


async def test_a_job_that_is_killed_again_and_again_does_everything_once(tmp_path: Path) -> None:
    poison = range(0, MESSAGES, POISON_EVERY)
    async with alpha_and_beta(tmp_path) as (mail, beta):
        await mail.declare(BOOKED)
        await post_payments(mail)
        left: list[int] = []
        for killed_after in (1, MESSAGES // 4, MESSAGES // 2):
            await until_booked(mail, killed_after)
            await beta.kill()
            left.append(MESSAGES - len(await mail.admin.peek(BOOKED, limit=MESSAGES)))
            await beta.start()
        assert left[0] > len(poison), "it was killed when nothing was left to do"
        await until_booked(mail, MESSAGES - len(poison))
        await until_drained(tmp_path)
        await beta.stop()
        letters = await mail.admin.peek(BOOKED, limit=2 * MESSAGES)
    booked = Counter(msgspec.json.decode(it.body)["n"] for it in letters)
    assert sorted(booked) == [n for n in range(MESSAGES) if n not in poison]
    assert set(booked.values()) == {1}
    assert look_at_beta(tmp_path) == (0, 0, 0, len(poison))


# A job and consumers of one node.


@pytest.fixture
async def mail() -> AsyncIterator[DurableQueues]:
    config = DurableQueuesConfig(batch_messages_max=7)
    async with (
        MessagingService(CLUSTER, ALPHA) as service,
        DurableQueues(
            service, MemoryStore(), directory=StaticPeerDirectory(), config=config
        ) as mail,
    ):
        yield mail


async def ignore(message: Message, tx: Transaction) -> None:
    raise AssertionError("nobody should handle it")


async def test_a_queue_with_a_consumer_is_not_read_by_a_job(mail: DurableQueues) -> None:
    await mail.consume(PAYMENTS, ignore)
    connector = QueueInput(mail, PAYMENTS)
    with pytest.raises(UsageError, match="'payments' has a consumer already"):
        await connector.open([])
    await mail.stop_consuming(PAYMENTS)
    await connector.open([])
    await connector.close()


async def test_a_queue_that_a_job_reads_has_no_consumer(mail: DurableQueues) -> None:
    connector = QueueInput(mail, PAYMENTS)
    await connector.open([])
    assert (await mail.statistics()).queues[PAYMENTS].has_consumer
    with pytest.raises(UsageError, match="'payments' has a job that reads it already"):
        await mail.consume(PAYMENTS, ignore)
    with pytest.raises(UsageError, match="'payments' has a job"):
        await mail.pull(PAYMENTS, timeout=0.01)
    with pytest.raises(UsageError, match="'payments' has a job"):
        await QueueInput(mail, PAYMENTS).open([])
    await connector.close()
    assert await mail.pull(PAYMENTS, timeout=0.01) == []


async def test_a_job_hands_on_to_consumers_of_its_own_node(mail: DurableQueues) -> None:
    handled: list[int] = []
    is_done = asyncio.Event()

    async def take(message: Message, tx: Transaction) -> None:
        handled.append(msgspec.json.decode(message.body)["n"])
        if len(handled) == 100:
            is_done.set()

    await mail.consume(BOOKED, take)
    inputs = {"in": QueueInput(mail, PAYMENTS)}
    runner = LocalRunner(JOB, inputs, {"out": QueueOutput(mail, ALPHA, BOOKED)}, mail.store)
    running = asyncio.create_task(runner.run())
    for n in range(100):
        await mail.send(PAYMENTS, msgspec.json.encode({"n": n, "amount": 1}), to=ALPHA)
    async with asyncio.timeout(DEADLINE_S):
        await is_done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sorted(handled) == list(range(100))
    assert (await mail.statistics()).queues[PAYMENTS].depth == 0
