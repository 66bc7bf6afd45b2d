"""Valid frames and configurations: the seeds of every corpus, and the peers of the machines."""

from __future__ import annotations

from itertools import count

from postroad.core import Address, Limits
from postroad.wire import (
    Cancel,
    Connection,
    Frame,
    Goodbye,
    Hello,
    Profile,
    Reply,
    Request,
    Role,
    SpareBuffer,
    WireConfig,
    encode_preamble,
)
from postroad.wire.codecs import Codec
from postroad.wire.compression import load_algorithm
from postroad.wire.frames import Ping, Pong
from postroad.wire.heartbeat import BEAT_SUBJECT, SETUP_SUBJECT
from postroad.wire.sbe import SetupRequest, encode_beat, encode_setup_request

CLUSTER = "fuzzed"
PREAMBLE = encode_preamble(CLUSTER)
# Small, so that inputs reach both sides of the limit.
LIMITS = Limits(frame_bytes_max=2_048)
ADDRESSES = {
    Role.CLIENT: Address("127.0.0.1", 27_998),
    Role.SERVER: Address("127.0.0.1", 26_502),
}
ALGORITHMS = {name: load_algorithm(name) for name in ("zstd", "zlib")}

REQUESTS: list[Frame] = [
    Request(1, "echo", b"hello"),
    Request(2**40, "", b""),
    Request(3, "größe/日本", bytes(range(256))),
    Request(4, "log", b"x" * 40, 5_000, one_way=True),
]
REPLIES: list[Frame] = [
    Reply(1, 0, b"hello"),
    Reply(2, 1, b"echo"),
    Reply(3, 2, b"boom", 3_800, retryable=True),
    Reply(4, 3, b"", 2_310),
    Reply(2**40, 0, b"y" * 40),
]
# Large enough for compression to be worth it.
LARGE: dict[Role, Frame] = {
    Role.CLIENT: Reply(5, 0, b"y" * 600),
    Role.SERVER: Request(5, "log", b"x" * 600),
}
"""What a machine of that role receives."""
CONTROLS: list[Frame] = [Ping(1), Pong(1), Cancel(2), Goodbye(0, "stopping")]
HEARTBEATS: list[Frame] = [
    Request(5, SETUP_SUBJECT, encode_setup_request(SetupRequest(15_000, sends_payload=True))),
    Request(6, BEAT_SUBJECT, encode_beat(1_700_000_000_000)),
    Request(7, BEAT_SUBJECT, b""),
]


def plain(frames: list[Frame]) -> list[Frame]:
    """The frames as versions 1 and 2 can tell them."""
    return [
        Request(frame.id, frame.subject, frame.payload)
        if isinstance(frame, Request)
        else Reply(frame.id, frame.status, frame.payload)
        for frame in frames
        if isinstance(frame, Request | Reply)
    ]


def make_hello(role: Role, compressions: tuple[str, ...] = ()) -> Hello:
    """The hello of a client or server of these tests."""
    return Hello(
        cluster=CLUSTER,
        name=f"{role.value}-node",
        incarnation=1,
        address=ADDRESSES[role],
        frame_bytes_max=LIMITS.frame_bytes_max,
        requests_pending_max=LIMITS.requests_pending_max,
        heartbeat_timeout_ms=round(LIMITS.heartbeat_timeout_s * 1_000),
        compressions=compressions,
    )


def make_config(role: Role, profile: Profile, compressions: tuple[str, ...] = ()) -> WireConfig:
    """The configuration of a client or server of these tests."""
    return WireConfig(
        profile=profile,
        preamble=PREAMBLE,
        hello=make_hello(role, compressions),
        advertised_ip=ADDRESSES[role].host,
        limits=LIMITS,
        wall_clock=lambda: 1_700_000_000_000,
        spare=SpareBuffer(),
        algorithms={name: ALGORITHMS[name] for name in compressions},
    )


def make_machine(role: Role, profile: Profile, compressions: tuple[str, ...] = ()) -> Connection:
    """A connection that has not received anything yet."""
    ids = count(1)
    config = make_config(role, profile, compressions)
    return Connection(role, config, 0.0, next_id=lambda: next(ids))


def encode_all(codec: Codec, frames: list[Frame]) -> bytes:
    """The frames in one piece."""
    out: list[bytes] = []
    for frame in frames:
        codec.encode(out, frame)
    return b"".join(out)
