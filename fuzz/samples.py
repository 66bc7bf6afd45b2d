"""Valid frames and configurations: the seeds of every corpus, and the peers of the machines."""

from __future__ import annotations

from itertools import count

from postroad.core import Address, Limits
from postroad.wire import (
    BufferCache,
    CancelFrame,
    ConnectionRole,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    ProtocolProfile,
    ReplyFrame,
    RequestFrame,
    WireConfig,
    WireConnection,
    encode_preamble,
)
from postroad.wire.codecs import Codec
from postroad.wire.compression import load_algorithm
from postroad.wire.frames import PingFrame, PongFrame
from postroad.wire.heartbeats import (
    HEARTBEAT_SUBJECT,
    SETUP_SUBJECT,
    HeartbeatSetupRequest,
    encode_heartbeat,
    encode_setup_request,
)

CLUSTER = "fuzzed"
PREAMBLE = encode_preamble(CLUSTER)
# Small, so that inputs reach both sides of the limit.
LIMITS = Limits(frame_bytes_max=2_048)
ADDRESSES = {
    ConnectionRole.CLIENT: Address("127.0.0.1", 27_998),
    ConnectionRole.SERVER: Address("127.0.0.1", 26_502),
}
ALGORITHMS = {name: load_algorithm(name) for name in ("zstd", "zlib")}

REQUESTS: list[Frame] = [
    RequestFrame(1, "echo", b"hello"),
    RequestFrame(2**40, "", b""),
    RequestFrame(3, "größe/日本", bytes(range(256))),
    RequestFrame(4, "log", b"x" * 40, 5_000, one_way=True),
]
REPLIES: list[Frame] = [
    ReplyFrame(1, 0, b"hello"),
    ReplyFrame(2, 1, b"echo"),
    ReplyFrame(3, 2, b"boom", 3_800, retryable=True),
    ReplyFrame(4, 3, b"", 2_310),
    ReplyFrame(2**40, 0, b"y" * 40),
]
# Large enough for compression to be worth it.
LARGE: dict[ConnectionRole, Frame] = {
    ConnectionRole.CLIENT: ReplyFrame(5, 0, b"y" * 600),
    ConnectionRole.SERVER: RequestFrame(5, "log", b"x" * 600),
}
"""What a machine of that role receives."""
CONTROLS: list[Frame] = [PingFrame(1), PongFrame(1), CancelFrame(2), GoodbyeFrame(0, "stopping")]
HEARTBEATS: list[Frame] = [
    RequestFrame(
        5, SETUP_SUBJECT, encode_setup_request(HeartbeatSetupRequest(15_000, sends_payload=True))
    ),
    RequestFrame(6, HEARTBEAT_SUBJECT, encode_heartbeat(1_700_000_000_000)),
    RequestFrame(7, HEARTBEAT_SUBJECT, b""),
]


def plain(frames: list[Frame]) -> list[Frame]:
    """The frames as versions 1 and 2 can tell them."""
    return [
        RequestFrame(frame.id, frame.subject, frame.payload)
        if isinstance(frame, RequestFrame)
        else ReplyFrame(frame.id, frame.status, frame.payload)
        for frame in frames
        if isinstance(frame, RequestFrame | ReplyFrame)
    ]


def make_hello(role: ConnectionRole, compressions: tuple[str, ...] = ()) -> HelloFrame:
    """The hello of a client or server of these tests."""
    return HelloFrame(
        cluster=CLUSTER,
        name=f"{role.value}-node",
        incarnation=1,
        address=ADDRESSES[role],
        frame_bytes_max=LIMITS.frame_bytes_max,
        requests_pending_max=LIMITS.requests_pending_max,
        heartbeat_timeout_ms=round(LIMITS.heartbeat_timeout_s * 1_000),
        compressions=compressions,
    )


def make_config(
    role: ConnectionRole, profile: ProtocolProfile, compressions: tuple[str, ...] = ()
) -> WireConfig:
    """The configuration of a client or server of these tests."""
    return WireConfig(
        profile=profile,
        preamble=PREAMBLE,
        hello=make_hello(role, compressions),
        advertised_ip=ADDRESSES[role].host,
        limits=LIMITS,
        wall_clock=lambda: 1_700_000_000_000,
        buffer_cache=BufferCache(),
        algorithms={name: ALGORITHMS[name] for name in compressions},
    )


def make_machine(
    role: ConnectionRole, profile: ProtocolProfile, compressions: tuple[str, ...] = ()
) -> WireConnection:
    """A connection that has not received anything yet."""
    ids = count(1)
    config = make_config(role, profile, compressions)
    return WireConnection(role, config, 0.0, next_id=lambda: next(ids))


def encode_all(codec: Codec, frames: list[Frame]) -> bytes:
    """The frames in one piece."""
    out: list[bytes] = []
    for frame in frames:
        codec.encode(out, frame)
    return b"".join(out)
