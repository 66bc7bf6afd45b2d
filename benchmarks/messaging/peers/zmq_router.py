"""pyzmq on asyncio: a DEALER with a future per request against a ROUTER that echoes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.messaging.processes import run_client, run_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import zmq.asyncio

    from benchmarks.messaging.job import Job
    from benchmarks.messaging.workloads import Call

ID_BYTES = 8


@asynccontextmanager
async def listen(job: Job) -> AsyncIterator[str]:
    import zmq.asyncio
    from zmq.constants import SocketType

    with zmq.asyncio.Context() as context, context.socket(SocketType.ROUTER) as socket:
        socket.bind("tcp://127.0.0.1:0")
        echo = asyncio.create_task(_echo(socket))
        yield socket.last_endpoint.decode()
        echo.cancel()


async def _echo(socket: zmq.asyncio.Socket) -> None:
    while True:
        # Peer, request id and payload go back as they came.
        await socket.send_multipart(await socket.recv_multipart())


@asynccontextmanager
async def connect(job: Job, address: str) -> AsyncIterator[Call]:
    import zmq.asyncio
    from zmq.constants import SocketType

    loop = asyncio.get_running_loop()
    pending: dict[bytes, asyncio.Future[bytes]] = {}
    ids = count()

    async def call(payload: bytes) -> bytes:
        id_ = next(ids).to_bytes(ID_BYTES)
        future: asyncio.Future[bytes] = loop.create_future()
        pending[id_] = future
        await socket.send_multipart((id_, payload))
        return await future

    async def collect() -> None:
        while True:
            id_, payload = await socket.recv_multipart()
            pending.pop(id_).set_result(payload)

    with zmq.asyncio.Context() as context, context.socket(SocketType.DEALER) as socket:
        socket.connect(address)
        replies = asyncio.create_task(collect())
        yield call
        replies.cancel()


serve = partial(run_server, listen)
client = partial(run_client, connect)
