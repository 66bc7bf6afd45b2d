"""A node with a queue full of segments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from postroad.durable import DurableQueues, DurableQueuesConfig, SqliteStore, StaticPeerDirectory
from postroad.net import MessagingService
from postroad.pipeline import Job, JobBuilder

NODE, PEER = "alpha", "beta"
QUEUE = "in"
# Nobody listens there: what is posted stays in the store.
NOWHERE = "127.0.0.1:9"
FUNCTIONS = "benchmarks.pipeline.functions"


@asynccontextmanager
async def mail_node(directory: Path) -> AsyncIterator[DurableQueues]:
    """A node whose peer is away."""
    config = DurableQueuesConfig(bridge_initial_delay_s=30.0, bridge_max_delay_s=60.0)
    async with MessagingService("bench", NODE) as service:
        store = SqliteStore(directory / "node.db")
        peers = StaticPeerDirectory({PEER: NOWHERE})
        async with DurableQueues(service, store, directory=peers, config=config) as mail:
            yield mail


def make_job(*, batch_size: int, bounded: bool) -> Job:
    """From a queue of this node to a queue of its peer."""
    out = {"peer": PEER, "queue": "out"}
    return (
        JobBuilder("queues")
        .input(
            "in",
            connector="queue",
            options={"queue": QUEUE, "bounded": bounded},
            batch_size=batch_size,
            max_pending=4 * batch_size,
        )
        .function("first", f"{FUNCTIONS}:first")
        .function("left", f"{FUNCTIONS}:left", after="first")
        .function("right", f"{FUNCTIONS}:right", after="first")
        .output("out_a", connector="queue", options=out, after="left")
        .output("out_b", connector="queue", options=out, after="right")
        .build()
    )
