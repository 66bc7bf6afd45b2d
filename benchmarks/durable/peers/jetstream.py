"""NATS JetStream through nats-py: a stream in files, a pull consumer with explicit acks.

Its server flushes files every two minutes by default; with `sync_always` before each confirmation.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from benchmarks.durable.job import Numbering, Tally
from benchmarks.durable.processes import Side
from benchmarks.nats import running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from benchmarks.durable.job import Job

STREAM = SUBJECT = CONSUMER = "letters"
BATCH = 1_000
TIMEOUT_S = 30.0
_CONFIG = """
jetstream {{
  store_dir: "{directory}/store"
  {sync}
}}
"""


@contextmanager
def serve(directory: Path, *, sync_always: bool = False) -> Iterator[str]:
    sync = "sync_interval: always" if sync_always else ""
    with running_nats(directory, _CONFIG.format(directory=directory, sync=sync)) as url:
        yield url


@asynccontextmanager
async def receive(job: Job, address: str) -> AsyncIterator[Side]:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    connection = await nats.connect(address)
    jetstream = connection.jetstream()
    await jetstream.add_stream(name=STREAM, subjects=[SUBJECT])
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=10 * BATCH)
    subscription = await jetstream.pull_subscribe(SUBJECT, CONSUMER, config=config)
    tally = Tally(job)

    async def transfer(count: int) -> None:
        tally.expect(count)
        while not tally.is_complete:
            messages = await subscription.fetch(BATCH, timeout=TIMEOUT_S)
            for message in messages:
                tally.add(message.data)
                # The server answers the last one, after all before it.
                if tally.is_complete:
                    await message.ack_sync(timeout=TIMEOUT_S)
                else:
                    await message.ack()

    yield Side(address, transfer)
    await connection.close()


@asynccontextmanager
async def send(job: Job, address: str) -> AsyncIterator[Side]:
    import nats

    connection = await nats.connect(address)
    jetstream = connection.jetstream(publish_async_max_pending=job.in_flight)
    numbering = Numbering(job)

    async def transfer(count: int) -> None:
        confirmations = [
            await jetstream.publish_async(SUBJECT, payload) for payload in numbering.take(count)
        ]
        for confirmation in confirmations:
            await confirmation

    yield Side(address, transfer)
    await connection.close()
