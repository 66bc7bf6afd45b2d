"""nats-py: core request/reply through a real nats-server, both on uvloop."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.messaging.processes import run_client, run_server
from benchmarks.nats import running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.msg import Msg

    from benchmarks.messaging.job import Job
    from benchmarks.messaging.workloads import Call

TIMEOUT_S = 5.0


@asynccontextmanager
async def listen(job: Job) -> AsyncIterator[str]:
    import nats

    async def respond(message: Msg) -> None:
        await message.respond(message.data)

    with running_nats(job.scratch) as url:
        connection = await nats.connect(url)
        await connection.subscribe(job.subject, cb=respond)
        await connection.flush()
        yield url


@asynccontextmanager
async def connect(job: Job, address: str) -> AsyncIterator[Call]:
    import nats

    connection = await nats.connect(address)

    async def call(payload: bytes) -> bytes:
        reply = await connection.request(job.subject, payload, timeout=TIMEOUT_S)
        data: bytes = reply.data
        return data

    yield call
    await connection.close()


serve = partial(run_server, listen)
client = partial(run_client, connect)
