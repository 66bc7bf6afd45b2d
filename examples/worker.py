"""A worker with a durable queue: failures are retried, and what nobody can do is a dead letter.

Run it with `python -m examples.worker`. A node finds `resize` and `lifespan` by itself, so this is
also a program for `postroad dev examples/worker.py`; `postroad queue post pictures cat.png` then
gives it something to do.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad import run
from postroad.core.errors import Reject
from postroad.durable import Message, RetryPolicy, Transaction
from postroad.node import Node, NodeConfig, app_of, consumer
from postroad.node.settings import NodeSettings, QueuesSettings


@asynccontextmanager
async def lifespan(node: Node) -> AsyncIterator[None]:
    async with node.queues.transaction() as tx:
        await tx.execute("CREATE TABLE IF NOT EXISTS resized (picture TEXT)")
    yield


@consumer("pictures", retry=RetryPolicy(max_attempts=3, initial_delay_s=0.01))
async def resize(message: Message, tx: Transaction) -> None:
    """The row and the end of the message are one commit, so there is one row for each picture."""
    picture = message.body.decode()
    if not picture.endswith(".png"):
        raise Reject(f"{picture} is not a picture")
    if picture == "huge.png" and message.attempt == 1:
        print(f"{picture}: out of memory, it will be tried again")
        raise MemoryError
    await tx.execute("INSERT INTO resized VALUES (?)", (picture,))
    print(f"{picture}: resized at attempt {message.attempt}")


async def main() -> None:
    config = NodeConfig(node=NodeSettings(name="worker"), queues=QueuesSettings(store="memory"))
    async with Node(config, app_of(sys.modules[__name__])) as node:
        for picture in ("cat.png", "notes.txt", "huge.png"):
            await node.queues.send("pictures", picture.encode(), to="worker")
        while await count_resized(node) < 2:  # noqa: ASYNC110 - it is in a database
            await asyncio.sleep(0.01)
        dead = await node.queues.dead_letters.list()
        print(f"dead letter: {dead[0].message.body.decode()} ({dead[0].detail})")


async def count_resized(node: Node) -> int:
    async with node.queues.transaction() as tx:
        ((rows,),) = await tx.execute("SELECT count(*) FROM resized")
    return int(rows)


if __name__ == "__main__":
    run(main())
