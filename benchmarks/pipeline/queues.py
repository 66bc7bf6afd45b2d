"""Queue to queue, against how quickly the store takes letters in bulk."""

from __future__ import annotations

import asyncio
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BenchmarkFailed, Comparison, Contender, Section
from benchmarks.pipeline.jobs import LIMIT_S, make_runner, run_timed
from benchmarks.pipeline.nodes import NODE, PEER, QUEUE, mail_node, make_job
from benchmarks.pipeline.session import shared_session
from postroad.durable import SqliteStore, StoredMessage
from postroad.durable.store.tables.queries import find_peer
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.durable.stored_messages import encode_stored_message

if TYPE_CHECKING:
    from benchmarks.harness import Settings

BATCH = 100_000
_AT_A_TIME = 10_000
OURS, BULK = "postroad, outputs", "bulk insert into the store, letters"


def section(settings: Settings) -> Section:
    """Letters that are written per second."""
    count = settings.segments
    case = f"{count:,} letters of 100 B, queue to queue, batches of {BATCH:,} for each core"
    return Section(
        title=case,
        unit="letters/s",
        contenders=[
            Contender(OURS, partial(_measure_job, settings.scratch / "queues", count)),
            Contender(BULK, partial(_measure_bulk, settings.scratch / "bulk", count)),
        ],
        comparisons=[Comparison(case, OURS, BULK, 0.6)],
        rounds_max=3,
    )


def _letters(start: int, count: int) -> list[bytes]:
    """Letters with segments, as they go into a store."""
    letters = []
    for number in range(start, start + count):
        begin = b'{"n":%d,"text":"' % number
        body = begin + b"x" * (98 - len(begin)) + b'"}'
        letters.append(
            encode_stored_message(StoredMessage(id=number + 1, queue=QUEUE, body=body, sent_ms=1))
        )
    return letters


async def _fill(store: SqliteStore, peer: str, count: int) -> None:
    for start in range(0, count, _AT_A_TIME):
        letters = _letters(start, min(_AT_A_TIME, count - start))

        def append(ledger: StoreTables, letters: list[bytes] = letters) -> None:
            ledger.enqueue_all(peer, letters)

        await store.write(append)


def _measure_job(directory: Path, count: int) -> float:
    directory.mkdir()
    try:
        return asyncio.run(asyncio.wait_for(_run_job(directory, count), LIMIT_S))
    finally:
        shutil.rmtree(directory)


async def _run_job(directory: Path, count: int) -> float:
    job = make_job(batch_size=min(BATCH, count), bounded=True)
    async with mail_node(directory) as mail:
        await _fill(mail.store, NODE, count)  # type: ignore[arg-type]
        checkpoint = directory / "checkpoint"
        runner = make_runner(job, mail.store, checkpoint, mail, session=shared_session())
        elapsed_s = await run_timed(runner, count)
        if runner.restarts or runner.coordinator.counts.acked != count:
            raise BenchmarkFailed(f"{runner.coordinator.counts} of {count}")
        peer = await mail.store.read(find_peer, PEER)
        assert peer is not None
        return (peer.last_seq - peer.acked_seq) / elapsed_s


def _measure_bulk(directory: Path, count: int) -> float:
    directory.mkdir()
    try:
        return asyncio.run(_run_bulk(directory, count))
    finally:
        shutil.rmtree(directory)


async def _run_bulk(directory: Path, count: int) -> float:
    store = SqliteStore(directory / "node.db")
    await store.open(NODE)
    letters = [_letters(start, _AT_A_TIME) for start in range(0, count, _AT_A_TIME)]
    started_s = time.perf_counter()
    for some in letters:
        await store.write(lambda ledger, it=some: ledger.enqueue_all(PEER, it))  # type: ignore[misc]
    elapsed_s = time.perf_counter() - started_s
    await store.close()
    return count / elapsed_s
