"""The floor: an `asyncio.Protocol` with version 3 framing and nothing else.

No handshake, deadlines, errors, limits or back-pressure; a future per request, one write per loop
turn. What Postroad costs on top of this is the price of its features.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, cast

from benchmarks.messaging.processes import run_client, run_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.messaging.job import Job
    from benchmarks.messaging.workloads import Call

# Length of what follows, type, flags, subject length or status, timeout or error code, id.
HEADER = Struct(">IBBHIQ")
LENGTH_BYTES = 4
AFTER_LENGTH_BYTES = HEADER.size - LENGTH_BYTES
REQUEST, REPLY = 1, 2
TIMEOUT_MS = 5000


class Server(asyncio.Protocol):
    """Answers each request with its payload, all of one read in one write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        replies = []
        position, end = 0, len(data)
        while end - position >= HEADER.size:
            length, _, _, subject_bytes, _, id_ = HEADER.unpack_from(data, position)
            stop = position + LENGTH_BYTES + length
            if stop > end:
                break
            payload = data[position + HEADER.size + subject_bytes : stop]
            replies.append(HEADER.pack(AFTER_LENGTH_BYTES + len(payload), REPLY, 0, 0, 0, id_))
            replies.append(payload)
            position = stop
        self._rest = data[position:]
        if replies:
            self._write(b"".join(replies))


class Client(asyncio.Protocol):
    """A dictionary of futures; requests of one loop turn leave in one write."""

    def __init__(self, subject: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._subject = subject
        self._next_id = 0
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._outgoing: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write
        self._rest = b""

    def call(self, payload: bytes) -> asyncio.Future[bytes]:
        self._next_id = id_ = self._next_id + 1
        subject = self._subject
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        length = AFTER_LENGTH_BYTES + len(subject) + len(payload)
        header = HEADER.pack(length, REQUEST, 0, len(subject), TIMEOUT_MS, id_)
        self._outgoing += (header, subject, payload)
        future = self._pending[id_] = self._loop.create_future()
        return future

    def _flush(self) -> None:
        self._write(b"".join(self._outgoing))
        self._outgoing.clear()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position, end = 0, len(data)
        while end - position >= HEADER.size:
            length, _, _, _, _, id_ = HEADER.unpack_from(data, position)
            stop = position + LENGTH_BYTES + length
            if stop > end:
                break
            self._pending.pop(id_).set_result(data[position + HEADER.size : stop])
            position = stop
        self._rest = data[position:]


@asynccontextmanager
async def listen(job: Job) -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield f"{host}:{port}"


@asynccontextmanager
async def connect(job: Job, address: str) -> AsyncIterator[Call]:
    host, port = address.split(":")
    transport, client = await asyncio.get_running_loop().create_connection(
        partial(Client, job.subject.encode()), host, int(port)
    )
    yield client.call
    transport.close()


serve = partial(run_server, listen)
client = partial(run_client, connect)
