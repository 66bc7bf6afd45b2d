"""Connection machines for tests: configurations, single sides, and two sides back to back.

There are no sockets and no clocks: a test hands over bytes in the pieces it likes and says what
time it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from typing import NamedTuple

import msgspec

from postroad import wire
from postroad.core.cluster_secret import ClusterSecret
from postroad.core.limits import Limits
from postroad.core.names import Address
from postroad.wire.compression import load_algorithm
from postroad.wire.frames import (
    CancelFrame,
    Frame,
    GoodbyeFrame,
    PingFrame,
    PongFrame,
    ProofFrame,
    ReplyFrame,
)

CLUSTER = "zeebe-cluster"
CLIENT_ADDRESS = Address("127.0.0.1", 27998)
SERVER_ADDRESS = Address("127.0.0.1", 26502)
WALL_CLOCK_MS = 1_700_000_000_123

QUIET = Limits(heartbeat_interval_s=0, heartbeat_timeout_s=0)
"""Limits without heartbeats, so that only what a test sends is on the wire."""

VERSION3_HEADER = struct.Struct(">IBBHIQ")
"""Length, type, flags, short, word, id: written here once more, not taken from the codec."""


def make_config(
    name: str = "client",
    *,
    cluster: str = CLUSTER,
    profile: wire.ProtocolProfile = wire.DOCUMENTED,
    limits: Limits = QUIET,
    address: Address = CLIENT_ADDRESS,
    advertised_ip: str = "127.0.0.1",
    incarnation: int = 1,
    compressions: Sequence[str] = (),
    heartbeat_payload: bool = True,
    secret: str | Sequence[str] | None = None,
    nonces: Iterator[bytes] | None = None,
) -> wire.WireConfig:
    """What a service of that name would hand to its connections."""
    hello = wire.HelloFrame(
        cluster=cluster,
        name=name,
        incarnation=incarnation,
        address=address,
        frame_bytes_max=limits.frame_bytes_max,
        requests_pending_max=limits.requests_pending_max,
        heartbeat_timeout_ms=round(limits.heartbeat_timeout_s * 1000),
        compressions=tuple(compressions),
    )
    return wire.WireConfig(
        profile=profile if secret is None else profile.proving(),
        preamble=wire.encode_preamble(cluster),
        hello=hello,
        advertised_ip=advertised_ip,
        limits=limits,
        wall_clock=lambda: WALL_CLOCK_MS,
        buffer_cache=wire.BufferCache(),
        algorithms={name: load_algorithm(name) for name in compressions},
        heartbeat_payload=heartbeat_payload,
        secret=None if secret is None else ClusterSecret(cluster, secret),
        new_nonce=None if secret is None else (nonces or make_nonces(name)).__next__,
    )


def make_nonces(name: str) -> Iterator[bytes]:
    """Nonces that follow from a name, so that a test can tell them."""
    return (f"{name} {number}".encode().ljust(32, b".") for number in count())


def server_config(
    name: str = "server",
    *,
    profile: wire.ProtocolProfile = wire.DOCUMENTED,
    limits: Limits = QUIET,
    heartbeat_payload: bool = True,
    secret: str | Sequence[str] | None = None,
    incarnation: int = 1,
) -> wire.WireConfig:
    return make_config(
        name,
        profile=profile,
        limits=limits,
        address=SERVER_ADDRESS,
        heartbeat_payload=heartbeat_payload,
        secret=secret,
        incarnation=incarnation,
    )


class Side:
    """One machine, what it reported and what it wrote."""

    def __init__(
        self,
        role: wire.ConnectionRole,
        config: wire.WireConfig | None = None,
        *,
        now: float = 0.0,
        next_id: Callable[[], int] | None = None,
        certificate_names: frozenset[str] | None = None,
    ) -> None:
        self.config = config or (
            make_config() if role is wire.ConnectionRole.CLIENT else server_config()
        )
        self.next_id = next_id or count(1).__next__
        self.machine = wire.WireConnection(
            role, self.config, now, next_id=self.next_id, certificate_names=certificate_names
        )
        self.now = now
        self.events: list[wire.ConnectionEvent] = []
        self.written = b""

    def give(self, *pieces: bytes) -> list[wire.ConnectionEvent]:
        """Hand over pieces one after the other; returns what all of them meant."""
        events: list[wire.ConnectionEvent] = []
        for piece in pieces:
            events += self.machine.receive_data(piece, self.now)
        self.events += events
        return events

    def pour(self, data: bytes, piece_bytes: int = 64 * 1024) -> list[wire.ConnectionEvent]:
        """Hand over a stream as a socket would, large frames straight into their room."""
        events: list[wire.ConnectionEvent] = []
        while data:
            room = self.machine.receive_buffer() if self.machine.wants_buffer else None
            size = min(piece_bytes, len(data) if room is None else len(room))
            piece, data = data[:size], data[size:]
            if room is None:
                events += self.machine.receive_data(piece, self.now)
            else:
                room[: len(piece)] = piece
                events += self.machine.buffer_updated(len(piece), self.now)
        self.events += events
        return events

    def take(self) -> bytes:
        """What the machine wants to send now, as one piece."""
        data = b"".join(self.machine.data_to_send(self.now)) if self.has_data else b""
        self.written += data
        return data

    @property
    def has_data(self) -> bool:
        return bool(self.machine.outgoing)

    def tick(self, now: float) -> bytes:
        """Let time come, then take what it made the machine say."""
        self.now = now
        self.machine.tick(now)
        return self.take()

    def echo(self, *pieces: bytes) -> bytes:
        """Hand over pieces and answer each request with its payload, as a node would."""
        for piece in pieces:
            for event in self.give(piece):
                if isinstance(event, wire.RequestFrame):
                    self.machine.reply(event.id, wire.ReplyStatus.OK, event.payload)
        return self.take()

    @property
    def failure(self) -> Exception | None:
        return self.machine.failure


class Pair:
    """A client and a server that hear each other."""

    def __init__(
        self,
        client: wire.WireConfig | None = None,
        server: wire.WireConfig | None = None,
        *,
        client_names: frozenset[str] | None = None,
        server_names: frozenset[str] | None = None,
    ) -> None:
        """`client_names` are in the client's certificate, so the server checks them."""
        self.client = Side(wire.ConnectionRole.CLIENT, client, certificate_names=server_names)
        self.server = Side(wire.ConnectionRole.SERVER, server, certificate_names=client_names)

    def settle(self, split: Callable[[bytes], Sequence[bytes]] | None = None) -> None:
        """Carry bytes both ways until nobody has anything to say."""
        cut = split or whole
        while self.client.has_data or self.server.has_data:
            self.server.give(*cut(self.client.take()))
            self.client.give(*cut(self.server.take()))

    def tick(self, now: float) -> None:
        """The same time comes for both, and what they then say arrives."""
        self.client.now = self.server.now = now
        self.client.machine.tick(now)
        self.server.machine.tick(now)
        self.settle()


def open_pair(client: wire.WireConfig | None = None, server: wire.WireConfig | None = None) -> Pair:
    """Two sides that have shaken hands and forgotten the events of that."""
    pair = Pair(client, server)
    pair.settle()
    pair.client.events.clear()
    pair.server.events.clear()
    return pair


def open_side(
    role: wire.ConnectionRole, version: int, profile: wire.ProtocolProfile = wire.DOCUMENTED
) -> Side:
    """One side after the handshake of that version; its peer is played by the test.

    In version 3 the peer has not said hello yet.
    """
    config = make_config if role is wire.ConnectionRole.CLIENT else server_config
    side = Side(role, config(profile=profile))
    has_preamble = role is wire.ConnectionRole.SERVER or profile is wire.ZEEBE
    side.give((wire.encode_preamble(CLUSTER) if has_preamble else b"") + struct.pack(">h", version))
    side.take()
    return side


def greeted_side(role: wire.ConnectionRole) -> Side:
    side = open_side(role, 3)
    side.give(hello_frame(peer_hello(role)))
    side.events.clear()
    return side


def peer_hello(role: wire.ConnectionRole) -> wire.HelloFrame:
    return server_config().hello if role is wire.ConnectionRole.CLIENT else make_config().hello


def version3_frame(
    kind: int, body: bytes = b"", *, flags: int = 0, short: int = 0, word: int = 0, id: int = 0
) -> bytes:
    """The bytes of a version 3 frame, packed by hand."""
    return VERSION3_HEADER.pack(16 + len(body), kind, flags, short, word, id) + body


def hello_frame(hello: wire.HelloFrame) -> bytes:
    """A version 3 hello, packed by hand."""
    numbers = ((6, ">I", hello.frame_bytes_max), (7, ">I", hello.requests_pending_max))
    fields = {
        1: hello.cluster.encode(),
        2: hello.name.encode(),
        3: struct.pack(">Q", hello.incarnation),
        4: hello.address.host.encode(),
        5: struct.pack(">H", hello.address.port),
        **{tag: struct.pack(layout, value) for tag, layout, value in numbers},
        8: struct.pack(">I", hello.heartbeat_timeout_ms),
        9: ",".join(hello.compressions).encode(),
    }
    if hello.role:
        fields[11] = hello.role.encode()
    if hello.zone:
        fields[12] = hello.zone.encode()
    if hello.is_tunnel:
        fields[13] = b"\x01"
    return version3_frame(3, hello_fields(fields))


def hello_fields(fields: dict[int, bytes]) -> bytes:
    return b"".join(struct.pack(">HH", tag, len(value)) + value for tag, value in fields.items())


def changed_hello(role: wire.ConnectionRole, **changes: object) -> bytes:
    """The hello that a side of that role expects, but for some fields."""
    return hello_frame(msgspec.structs.replace(peer_hello(role), **changes))


class RawFrame(NamedTuple):
    kind: int
    flags: int
    short: int
    word: int
    id: int
    body: bytes


def cut_version3(data: bytes) -> list[RawFrame]:
    """The version 3 frames that a machine wrote."""
    frames = []
    while data:
        length, kind, flags, short, word, id = VERSION3_HEADER.unpack_from(data)
        frames.append(RawFrame(kind, flags, short, word, id, data[20 : 4 + length]))
        data = data[4 + length :]
    return frames


def version3_sample(kind: type[Frame], receiver: wire.ConnectionRole) -> bytes:
    """A well-formed version 3 frame of that type, as a side of that role would receive it."""
    samples = {
        wire.RequestFrame: version3_frame(1, b"echo" + b"payload", short=4, id=7),
        ReplyFrame: version3_frame(2, b"payload", id=7),
        wire.HelloFrame: hello_frame(peer_hello(receiver)),
        CancelFrame: version3_frame(4, id=7),
        PingFrame: version3_frame(5, id=7),
        PongFrame: version3_frame(6, id=7),
        GoodbyeFrame: version3_frame(7, b"so long", word=3100),
        ProofFrame: version3_frame(8, bytes(32)),
    }
    return samples[kind]


def whole(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


def cut_at(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Pieces that end at the given positions; equal ones make empty pieces."""
    bounds = [0, *sorted(cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds)]


Feeding = Callable[[Sequence[bytes]], list[bytes]]
"""Takes the units of a conversation, returns the pieces in which they arrive."""

FEEDINGS: dict[str, Feeding] = {
    "whole": list,
    "bytes": lambda units: byte_by_byte(b"".join(units)),
    "coalesced": lambda units: [b"".join(units)],
}


def two_pieces(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    return ((data[:index], data[index:]) for index in range(1, len(data)))
