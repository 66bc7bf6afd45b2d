"""The protocol's versions as raw peers of either side speak them.

The layouts are written here once more, by hand, so that a mistake in a codec cannot hide itself.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from postroad.net import Address, ProtocolConfig
from postroad.wire import HelloFrame, encode_preamble
from tests.support.net.raw_peers import CLUSTER, RawPeer
from tests.support.wire.pairs import VERSION3_HEADER, hello_frame, version3_frame

PREAMBLE = bytes.fromhex("eb6eec8a")


class RawRequest(NamedTuple):
    id: int
    subject: str
    payload: bytes


class RawReply(NamedTuple):
    id: int
    status: int
    payload: bytes


def varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; for values that fit into 56 bits."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


async def take_varint(peer: RawPeer) -> int:
    """Read one, of at most eight bytes."""
    value = 0
    for shift in range(0, 56, 7):
        (byte,) = await peer.take(1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value


class Dialect:
    """One profile and version as a raw peer of either side speaks it."""

    profile = "documented"
    host = "127.0.0.1"
    port = 27998

    def __init__(self, version: int) -> None:
        self.version = version

    @property
    def protocol(self) -> ProtocolConfig:
        """What makes a service speak this."""
        return ProtocolConfig(profile=self.profile, version_max=self.version)

    def __str__(self) -> str:
        return f"{self.profile}-v{self.version}"

    # Opening.

    def opening(self, cluster: str = CLUSTER, version: int | None = None) -> bytes:
        offered = self.version if version is None else version
        return encode_preamble(cluster) + struct.pack(">h", offered)

    def answer(self, version: int | None = None, preamble: bytes = PREAMBLE) -> bytes:
        return struct.pack(">h", self.version if version is None else version)

    def introduction(self, name: str = "raw") -> bytes:
        """What stands before the first frame of either side."""
        if self.version == 1:
            return struct.pack(">h4si", 4, b"\x7f\0\0\1", self.port)
        return struct.pack(">h", len(self.host)) + self.host.encode() + struct.pack(">i", self.port)

    async def take_introduction(self, peer: RawPeer) -> None:
        size = struct.unpack(">h", await peer.take(2))[0]
        await peer.take(size + 4)

    async def accept(self, peer: RawPeer) -> None:
        await peer.expect(self.opening())
        peer.send(self.answer())
        await self.meet(peer)

    async def meet(self, peer: RawPeer) -> None:
        """What follows the server's answer, before the first request."""

    async def dial(self, peer: RawPeer) -> None:
        peer.send(self.opening())
        await peer.expect(self.answer())
        peer.send(self.introduction())

    # Frames.

    def request(self, id: int, subject: str | bytes, payload: bytes = b"") -> bytes:
        name = subject.encode() if isinstance(subject, str) else subject
        head = struct.pack(">bqi", 1, id, len(payload))
        return head + payload + struct.pack(">i", len(name)) + name

    def reply(self, id: int, payload: bytes = b"", status: int = 0) -> bytes:
        return struct.pack(">bqi", 2, id, len(payload)) + payload + bytes([status])

    def oversized(self, kind: int, length: int) -> bytes:
        """The start of a frame that announces a payload of that length."""
        return struct.pack(">bqI", kind, 1, length)

    def unknown_type(self) -> bytes:
        return struct.pack(">bqi", 9, 1, 0) + b"\0" * 8

    async def take_request(self, peer: RawPeer) -> RawRequest:
        """Read the next request; the sender's introduction must have been read."""
        kind, id, size = struct.unpack(">bqi", await peer.take(13))
        assert kind == 1
        payload = await peer.take(size)
        (size,) = struct.unpack(">i", await peer.take(4))
        return RawRequest(id, (await peer.take(size)).decode(), payload)

    async def take_reply(self, peer: RawPeer) -> RawReply:
        """Read the next reply; the sender's introduction must have been read."""
        kind, id, size = struct.unpack(">bqi", await peer.take(13))
        assert kind == 2
        payload = await peer.take(size)
        return RawReply(id, (await peer.take(1))[0], payload)

    async def take_first_request(self, peer: RawPeer) -> RawRequest:
        await self.take_introduction(peer)
        return await self.take_request(peer)

    async def take_first_reply(self, peer: RawPeer) -> RawReply:
        await self.take_introduction(peer)
        return await self.take_reply(peer)

    def first_reply(self, id: int, payload: bytes = b"", status: int = 0) -> bytes:
        return self.introduction() + self.reply(id, payload, status)


class Zeebe(Dialect):
    """The real bytes of the source system."""

    profile = "zeebe"

    def answer(self, version: int | None = None, preamble: bytes = PREAMBLE) -> bytes:
        return preamble + super().answer(version)

    def introduction(self, name: str = "raw") -> bytes:
        if self.version == 1:
            return struct.pack(">B4si", 4, b"\x7f\0\0\1", self.port)
        return super().introduction()

    async def take_introduction(self, peer: RawPeer) -> None:
        if self.version == 1:
            await peer.take(1 + 4 + 4)
        else:
            await super().take_introduction(peer)

    def request(self, id: int, subject: str | bytes, payload: bytes = b"") -> bytes:
        name = subject.encode() if isinstance(subject, str) else subject
        head = b"\x01" + varint(id) + varint(len(payload))
        return head + payload + struct.pack(">H", len(name)) + name

    def reply(self, id: int, payload: bytes = b"", status: int = 0) -> bytes:
        return b"\x02" + varint(id) + varint(len(payload)) + payload + bytes([status])

    def oversized(self, kind: int, length: int) -> bytes:
        return bytes([kind, 1]) + varint(length)

    def unknown_type(self) -> bytes:
        return b"\x09\x01\x00\x00"

    async def take_request(self, peer: RawPeer) -> RawRequest:
        await peer.expect(b"\x01")
        id = await take_varint(peer)
        payload = await peer.take(await take_varint(peer))
        (size,) = struct.unpack(">H", await peer.take(2))
        return RawRequest(id, (await peer.take(size)).decode(), payload)

    async def take_reply(self, peer: RawPeer) -> RawReply:
        await peer.expect(b"\x02")
        id = await take_varint(peer)
        payload = await peer.take(await take_varint(peer))
        return RawReply(id, (await peer.take(1))[0], payload)


class Version3(Dialect):
    heartbeat_timeout_ms = 0

    def __init__(self) -> None:
        super().__init__(3)

    def hello(self, **changes: Any) -> bytes:
        """What this peer says of itself, but for some fields."""
        fields: dict[str, Any] = {
            "cluster": CLUSTER,
            "name": "raw",
            "incarnation": 1,
            "address": Address(self.host, self.port),
            "frame_bytes_max": 1 << 22,
            "requests_pending_max": 1024,
            "heartbeat_timeout_ms": self.heartbeat_timeout_ms,
        }
        return hello_frame(HelloFrame(**(fields | changes)))

    def introduction(self, name: str = "raw") -> bytes:
        return self.hello(name=name)

    async def take_introduction(self, peer: RawPeer) -> None:
        kind, _ = await self.take_frame(peer)
        assert kind == 3

    async def take_frame(self, peer: RawPeer) -> tuple[int, bytes]:
        (length,) = struct.unpack(">I", await peer.take(4))
        frame = await peer.take(length)
        return frame[0], frame

    async def meet(self, peer: RawPeer) -> None:
        peer.send(self.introduction())

    async def accept_with(self, peer: RawPeer, hello: bytes) -> None:
        """Play the server that says this of itself."""
        await peer.expect(self.opening())
        peer.send(self.answer() + hello)
        await self.take_introduction(peer)

    def request(self, id: int, subject: str | bytes, payload: bytes = b"") -> bytes:
        name = subject.encode() if isinstance(subject, str) else subject
        return version3_frame(1, name + payload, short=len(name), word=5_000, id=id)

    def reply(self, id: int, payload: bytes = b"", status: int = 0) -> bytes:
        return version3_frame(2, payload, short=status, id=id)

    def oversized(self, kind: int, length: int) -> bytes:
        return VERSION3_HEADER.pack(length, kind, 0, 0, 0, 1)

    def unknown_type(self) -> bytes:
        return version3_frame(9, id=1)

    async def take_request(self, peer: RawPeer) -> RawRequest:
        while True:
            kind, frame = await self.take_frame(peer)
            if kind == 1:
                size = int.from_bytes(frame[2:4], "big")
                id = int.from_bytes(frame[8:16], "big")
                return RawRequest(id, frame[16 : 16 + size].decode(), frame[16 + size :])

    async def take_reply(self, peer: RawPeer) -> RawReply:
        while True:
            kind, frame = await self.take_frame(peer)
            if kind == 2:
                status = int.from_bytes(frame[2:4], "big")
                return RawReply(int.from_bytes(frame[8:16], "big"), status, frame[16:])

    def first_reply(self, id: int, payload: bytes = b"", status: int = 0) -> bytes:
        # The introduction left with the answer to the handshake already.
        return self.reply(id, payload, status)


DIALECTS = (Dialect(1), Dialect(2), Version3(), Zeebe(1), Zeebe(2))


async def serve_echo(dialect: Dialect, peer: RawPeer) -> None:
    """The script of a well-behaved raw server."""
    await dialect.accept(peer)
    request = await dialect.take_first_request(peer)
    peer.send(dialect.first_reply(request.id, request.payload))
    while True:
        request = await dialect.take_request(peer)
        peer.send(dialect.reply(request.id, request.payload))
