"""A node that runs a job: `python -m tests.integration.pipeline.payments_node DIRECTORY ALPHA`.

The job reads the queue `payments` of this node, beta, and posts to the queue `booked` of the node
alpha at that address. Its account is in the store of the mail. Prints the address of the node, and
ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from postroad import run
from postroad.durable import DurableQueues, DurableQueuesConfig, SqliteStore, StaticPeerDirectory
from postroad.net import MessagingService
from postroad.pipeline import (
    Job,
    LocalRunner,
    RetryPolicy,
    Segment,
    Task,
    TaskType,
    make_input,
    make_output,
)

CLUSTER = "payments"
ALPHA, BETA = "alpha", "beta"
PAYMENTS, BOOKED = "payments", "booked"
CONFIG = DurableQueuesConfig(bridge_initial_delay_s=0.02, bridge_max_delay_s=0.1)


def book(segment: Segment) -> Segment:
    """Nobody can book a payment of nothing."""
    if segment["amount"] == 0:
        raise ValueError("a payment of nothing")
    return {"n": segment["n"], "cents": segment["amount"] * 100}


IN = Task(
    name="in",
    type=TaskType.INPUT,
    connector="queue",
    options={"queue": PAYMENTS},
    batch_size=2_000,
    retry=RetryPolicy(attempts=2, first_s=0.01, max_s=0.02),
)
OUT = Task(
    name="out",
    type=TaskType.OUTPUT,
    connector="queue",
    options={"peer": ALPHA, "queue": BOOKED},
)
JOB = Job(
    name="booking",
    workflow=[("in", "book"), ("book", "out")],
    catalog=[
        IN,
        Task(
            name="book", type=TaskType.FUNCTION, fn="tests.integration.pipeline.payments_node:book"
        ),
        OUT,
    ],
)


async def work(directory: Path, alpha: str) -> None:
    async with MessagingService(CLUSTER, BETA) as service:
        peers = StaticPeerDirectory({ALPHA: alpha})
        store = SqliteStore(directory / "beta.db")
        async with DurableQueues(service, store, directory=peers, config=CONFIG) as mail:
            inputs, outputs = {"in": make_input(IN, mail)}, {"out": make_output(OUT, mail)}
            runner = LocalRunner(JOB, inputs, outputs, mail.store)
            running = asyncio.create_task(runner.run())
            sys.stdout.write(f"{service.address}\n")
            sys.stdout.flush()
            ending = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            await asyncio.wait((running, ending), return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    run(work(Path(sys.argv[1]), sys.argv[2]))
