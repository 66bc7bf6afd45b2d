"""Scripted peers: plain sockets that speak bytes packed here by hand.

With them a test can do what no service would: answer nonsense, stop reading, close in the middle.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

import pytest

from postroad.net import Address
from postroad.wire import HelloFrame, encode_preamble
from tests.support.net.peers import CLUSTER, LOOPBACK, turns
from tests.support.servers.process import free_port
from tests.support.wire.pairs import VERSION3_HEADER, hello_frame, version3_frame

raw_versions = pytest.mark.parametrize("version", [2, 3])

REQUEST_HEADER = struct.Struct(">Bqi")
"""Versions 1 and 2 as documented: type, id, payload length."""


class RawRequest(NamedTuple):
    """A request as a scripted server read it."""

    id: int
    subject: str
    payload: bytes
    timeout_ms: int = 0
    one_way: bool = False


class RawReply(NamedTuple):
    """A reply as a scripted client read it."""

    id: int
    status: int
    payload: bytes
    code: int = 0
    retryable: bool = False


class RawPeer:
    """One end of a connection, documented profile, driven by a test byte by byte."""

    def __init__(self, sock: socket.socket, version: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.version = version
        self._loop = asyncio.get_running_loop()
        self._rest = bytearray()
        self._is_introduced = False
        self._has_sender = False

    @classmethod
    async def connect(
        cls, address: Address, version: int = 3, *, receive_buffer: int | None = None
    ) -> Self:
        """Dial a service and shake hands."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        peer = cls(sock, version)
        await peer._loop.sock_connect(sock, address)
        await peer.write(encode_preamble(CLUSTER) + struct.pack(">h", version))
        assert await peer.read(2) == struct.pack(">h", version)
        if version >= 3:
            await peer.write(raw_hello("raw-client"))
            await peer.read_frame()
        return peer

    async def greet(self, name: str = "raw-server") -> None:
        """Shake hands as a server."""
        await self.read(6)
        await self.write(struct.pack(">h", self.version))
        if self.version >= 3:
            await self.write(raw_hello(name))
            await self.read_frame()

    async def write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes; ConnectionError if they do not come."""
        while len(self._rest) < size:
            piece = await self._loop.sock_recv(self.sock, 65_536)
            if not piece:
                raise ConnectionError("the service closed the connection")
            self._rest += piece
        data = bytes(self._rest[:size])
        del self._rest[:size]
        return data

    async def read_to_end(self) -> bytes:
        """Everything until the service closes."""
        try:
            while piece := await self._loop.sock_recv(self.sock, 65_536):
                self._rest += piece
        except ConnectionResetError:
            pass
        return bytes(self._rest)

    async def read_frame(self) -> tuple[int, int, int, int, int, bytes]:
        """A version 3 frame: type, flags, short, word, id, body."""
        length, kind, flags, short, word, id = VERSION3_HEADER.unpack(await self.read(20))
        return kind, flags, short, word, id, await self.read(length - 16)

    async def read_request(self) -> RawRequest:
        """The next request."""
        if self.version >= 3:
            kind, flags, short, word, id, body = await self.read_frame()
            assert kind == 1, f"frame type {kind} instead of a request"
            return RawRequest(id, body[:short].decode(), body[short:], word, bool(flags & 1))
        await self._skip_sender()
        kind, id, length = REQUEST_HEADER.unpack(await self.read(13))
        assert kind == 1
        payload = await self.read(length)
        (size,) = struct.unpack(">i", await self.read(4))
        return RawRequest(id, (await self.read(size)).decode(), payload)

    async def read_reply(self) -> RawReply:
        """The next reply."""
        if self.version >= 3:
            kind, flags, short, word, id, body = await self.read_frame()
            assert kind == 2, f"frame type {kind} instead of a reply"
            return RawReply(id, short, body, word, bool(flags & 4))
        await self._skip_sender()
        kind, id, length = REQUEST_HEADER.unpack(await self.read(13))
        assert kind == 2
        payload = await self.read(length)
        return RawReply(id, (await self.read(1))[0], payload)

    async def request(
        self, id: int, subject: str | bytes, payload: bytes = b"", *, timeout_ms: int = 0
    ) -> None:
        await self.write(self.request_bytes(id, subject, payload, timeout_ms=timeout_ms))

    def request_bytes(
        self, id: int, subject: str | bytes, payload: bytes = b"", *, timeout_ms: int = 0
    ) -> bytes:
        """A request; a subject given as bytes need not be valid."""
        encoded = subject.encode() if isinstance(subject, str) else subject
        if self.version >= 3:
            body = encoded + payload
            return version3_frame(1, body, short=len(encoded), word=timeout_ms, id=id)
        header = REQUEST_HEADER.pack(1, id, len(payload))
        frame = header + payload + struct.pack(">i", len(encoded)) + encoded
        return self._introduction() + frame

    async def reply(self, id: int, payload: bytes = b"", status: int = 0) -> None:
        if self.version >= 3:
            await self.write(version3_frame(2, payload, short=status, id=id))
            return
        frame = REQUEST_HEADER.pack(2, id, len(payload)) + payload + bytes([status])
        await self.write(self._introduction() + frame)

    async def answer_requests(self) -> None:
        """Echo until the service closes."""
        while True:
            request = await self.read_request()
            await self.reply(request.id, request.payload)

    def _introduction(self) -> bytes:
        if self._is_introduced:
            return b""
        self._is_introduced = True
        return struct.pack(">h", 9) + LOOPBACK.encode() + struct.pack(">i", 7)

    async def _skip_sender(self) -> None:
        if not self._has_sender:
            self._has_sender = True
            (size,) = struct.unpack(">h", await self.read(2))
            await self.read(size + 4)

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Close so that the service sees a connection reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def raw_hello(name: str, *, frame_bytes_max: int = 4 << 20) -> bytes:
    """A version 3 hello of a scripted peer."""
    return hello_frame(
        HelloFrame(
            cluster=CLUSTER,
            name=name,
            incarnation=1,
            address=Address(LOOPBACK, 7),
            frame_bytes_max=frame_bytes_max,
            requests_pending_max=16_384,
        )
    )


Script = Callable[[RawPeer], Awaitable[None]]


class RawServer:
    """Accepts connections and runs the script for each."""

    def __init__(
        self, script: Script, version: int = 3, *, receive_buffer: int | None = None
    ) -> None:
        self._script = script
        self._version = version
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.setblocking(False)
        self._listener.bind((LOOPBACK, 0))
        self._listener.listen(128)
        self._tasks: list[asyncio.Task[None]] = []
        self.peers: list[RawPeer] = []

    @property
    def address(self) -> Address:
        return Address(LOOPBACK, self._listener.getsockname()[1])

    @property
    def accepted(self) -> int:
        return len(self.peers)

    def hang_up(self) -> None:
        """Close its end of all connections accepted by now; others may still be on their way."""
        for peer in self.peers:
            peer.close()
        self.peers.clear()

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers:
            peer.close()

    def _accept(self) -> None:
        """Without a task, which could be cancelled when it has a socket already."""
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # Whoever dialed has gone.
            return
        sock.setblocking(False)
        peer = RawPeer(sock, self._version)
        self.peers.append(peer)
        self._tasks.append(asyncio.create_task(self._run(peer)))

    async def _run(self, peer: RawPeer) -> None:
        try:
            await self._script(peer)
        except (ConnectionError, OSError):
            pass


async def say_nothing(_peer: RawPeer) -> None:
    """A script: never even shake hands."""
    await asyncio.Event().wait()


async def greet_only(peer: RawPeer) -> None:
    """A script: shake hands, then neither read nor write."""
    await peer.greet()
    await asyncio.Event().wait()


async def echo(peer: RawPeer) -> None:
    """A script: a well-behaved server."""
    await peer.greet()
    await peer.answer_requests()


@asynccontextmanager
async def blackhole() -> AsyncIterator[Address]:
    """An address whose connections never complete: a listener with a full queue."""
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen(0)
    address = Address(LOOPBACK, listener.getsockname()[1])
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(address)
        fillers.append(filler)
    await turns(5)
    try:
        yield address
    finally:
        for sock in (*fillers, listener):
            sock.close()


def unused_address() -> Address:
    """An address at which nobody listens."""
    return Address(LOOPBACK, free_port())
