"""Ends of tunnels for tests: connection machines, and users that remember what they were told."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from postroad.core.limits import Limits
from postroad.net import Address, MessagingService, Tunnel
from postroad.wire import ConnectionRole, HelloFrame, RequestFrame, WireConfig, encode_preamble
from tests.support.deadlines import eventually
from tests.support.net.peers import CLUSTER, LOOPBACK, make_service
from tests.support.net.scripts import RawPeer
from tests.support.wire import pairs

PREAMBLE = b"\xeb\x6e\xec\x8a\x00\x03"
"""What the client of the worked examples opens a connection of version 3 with."""


def with_part(config: WireConfig, **changes: object) -> WireConfig:
    """The configuration of a node that plays some part among cells."""
    hello = msgspec.structs.replace(config.hello, **changes)
    return msgspec.structs.replace(config, hello=hello)


def tunnel_client(limits: Limits = pairs.QUIET, compressions: Sequence[str] = ()) -> WireConfig:
    """What a node gives to the connection of a tunnel that it opens."""
    config = pairs.make_config(limits=limits, compressions=compressions)
    return with_part(config, role="satellite", is_tunnel=True)


def tunnel_server(limits: Limits = pairs.QUIET) -> WireConfig:
    return with_part(pairs.server_config(limits=limits), role="core", zone="north")


def tunnel_hello(receiver: ConnectionRole) -> HelloFrame:
    """What the peer of the end of that role says."""
    peer = pairs.peer_hello(receiver)
    if receiver is ConnectionRole.CLIENT:
        return msgspec.structs.replace(peer, role="core", zone="north")
    return msgspec.structs.replace(peer, role="satellite", is_tunnel=True)


def tunnel_side(role: ConnectionRole, *, is_taken: bool = True) -> pairs.Side:
    """One end of a tunnel, whose peer is played by the test and has said hello."""
    is_client = role is ConnectionRole.CLIENT
    side = pairs.Side(role, tunnel_client() if is_client else tunnel_server())
    side.give((PREAMBLE[4:] if is_client else PREAMBLE) + pairs.hello_frame(tunnel_hello(role)))
    if is_client and is_taken:
        side.give(pairs.version3_frame(5, id=1))
    side.take()
    side.events.clear()
    return side


def tunnel_pair(client: WireConfig | None = None, server: WireConfig | None = None) -> pairs.Pair:
    pair = pairs.Pair(client or tunnel_client(), server or tunnel_server())
    pair.settle()
    pair.server.machine.ping(0)
    pair.settle()
    pair.client.events.clear()
    pair.server.events.clear()
    return pair


class Recorder:
    """Remembers everything; `on_received` may do more, such as failing."""

    def __init__(self, tunnel: Tunnel) -> None:
        self.tunnel = tunnel
        self.payloads: list[bytes] = []
        self.subjects: list[str] = []
        self.batches = 0
        self.rooms = 0
        self.reasons: list[str] = []
        self.on_received: Callable[[list[RequestFrame]], None] | None = None
        self.on_room: Callable[[], None] | None = None

    def on_messages(self, requests: list[RequestFrame]) -> None:
        assert not self.reasons, "something came after the end"
        self.batches += 1
        self.payloads += [request.payload for request in requests]
        self.subjects += [request.subject for request in requests]
        if self.on_received is not None:
            self.on_received(requests)

    def on_writable(self) -> None:
        assert not self.reasons, "something came after the end"
        self.rooms += 1
        if self.on_room is not None:
            self.on_room()

    def on_lost(self, reason: str) -> None:
        self.reasons.append(reason)


class Recorders:
    def __init__(self) -> None:
        self.all: list[Recorder] = []

    def __call__(self, tunnel: Tunnel) -> Recorder:
        recorder = Recorder(tunnel)
        self.all.append(recorder)
        return recorder

    @property
    def last(self) -> Recorder:
        return self.all[-1]


class TunnelPair(NamedTuple):
    """Two services, of which the first opens a tunnel to the second."""

    client: MessagingService
    server: MessagingService
    users: Recorders
    """Of the tunnels that the client has opened."""
    server_users: Recorders

    async def open(self, **options: object) -> tuple[Recorder, Recorder]:
        """A new tunnel: the user at the client's end, and the one at the server's."""
        before = len(self.server_users.all)
        await self.client.tunnels.open(
            self.server.address,
            self.users,
            **options,  # type: ignore[arg-type]
        )
        await eventually(lambda: len(self.server_users.all) > before)
        return self.users.last, self.server_users.last


@asynccontextmanager
async def running_tunnels(
    *,
    client_limits: Mapping[str, float] | None = None,
    server_limits: Mapping[str, float] | None = None,
) -> AsyncIterator[TunnelPair]:
    """A satellite and a core that takes every tunnel."""
    async with (
        make_service("core-1", limits=server_limits) as server,
        make_service("satellite-1", limits=client_limits) as client,
    ):
        server.set_hello_role("core", "north")
        client.set_hello_role("satellite", None)
        server_users = Recorders()
        server.tunnels.accept(server_users)
        yield TunnelPair(client, server, Recorders(), server_users)


def raw_part(name: str, *, role: str = "", is_tunnel: bool = False) -> bytes:
    """The hello of a scripted peer that plays a part among cells."""
    return pairs.hello_frame(
        HelloFrame(
            cluster=CLUSTER,
            name=name,
            incarnation=1,
            address=Address(LOOPBACK, 7),
            frame_bytes_max=4 << 20,
            requests_pending_max=16_384,
            role=role,
            is_tunnel=is_tunnel,
        )
    )


async def raw_tunnel(address: Address, *frames: bytes, is_taken: bool = True) -> RawPeer:
    """A scripted client of a tunnel; the frames follow its hello in the same write."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    peer = RawPeer(sock, 3)
    await asyncio.get_running_loop().sock_connect(sock, address)
    await peer.write(encode_preamble(CLUSTER) + struct.pack(">h", 3))
    assert await peer.read(2) == struct.pack(">h", 3)
    await peer.write(raw_part("raw", role="satellite", is_tunnel=True) + b"".join(frames))
    await peer.read_frame()
    if is_taken:
        kind, *_ = await peer.read_frame()
        assert kind == 5, "a ping says that the tunnel is taken"
    return peer


async def serve_raw_tunnel(peer: RawPeer, *frames: bytes) -> None:
    """Shake hands as a scripted server and take the tunnel; the frames follow the hello."""
    await peer.read(6)
    hello = raw_part("raw", role="core")
    await peer.write(
        struct.pack(">h", 3) + hello + b"".join(frames) + pairs.version3_frame(5, id=1)
    )
    await peer.read_frame()
