"""Frames and events of a connection.

Requests go from client to server, replies come back; on a tunnel requests go both ways and there
are no replies. Codecs create frames, handlers and callers read them; none is stored for long. They
hold plain integers where an enum would cost a look-up per frame.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from postroad.core.errors import FrameTooLargeError, MalformedFrameError
from postroad.core.names import Address
from postroad.core.tracing import SpanContext

Bytes: TypeAlias = bytes | memoryview


def decode_utf8(data: Bytes, field: str, request_id: int | None = None) -> str:
    """Decode a text field from a peer; raise MalformedFrameError if it is not UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFrameError(
            f"{field} is not valid UTF-8: {error.reason}", request_id
        ) from None


def check_frame_size(size: int, maximum: int) -> None:
    """Reject a frame by its announced size, before memory is allocated for it."""
    if size > maximum:
        raise frame_too_large_error(size, maximum)


def frame_too_large_error(size: int, maximum: int) -> FrameTooLargeError:
    """Build the error for a frame that exceeds the limit."""
    return FrameTooLargeError(f"a frame of {size} bytes was announced, {maximum} are accepted")


class ConnectionRole(enum.Enum):
    """The side of a connection: the client opened it."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def opposite(self) -> ConnectionRole:
        return ConnectionRole.SERVER if self is ConnectionRole.CLIENT else ConnectionRole.CLIENT


class ReplyStatus(enum.IntEnum):
    """Result of a request. Every version has 0 to 3; only version 3 has the others."""

    OK = 0
    NO_HANDLER = 1
    HANDLER_FAILED = 2
    PROTOCOL_FAILED = 3
    STOPPING = 4


class RequestFrame(msgspec.Struct, gc=False):
    """A message to a subject. `timeout_ms` is 0 if the sender set no deadline."""

    id: int
    subject: str
    payload: bytes
    timeout_ms: int = 0
    one_way: bool = False
    trace: SpanContext | None = None
    """Version 3: trace context of the sender, if any."""


class ReplyFrame(msgspec.Struct, gc=False):
    """The reply to the request with the same id; on failure the payload is text."""

    id: int
    status: int
    payload: bytes
    code: int = 0
    retryable: bool = False


class HelloFrame(msgspec.Struct, frozen=True):
    """Version 3: identity and capabilities. First frame of either side (3.2)."""

    cluster: str
    name: str
    incarnation: int
    address: Address
    frame_bytes_max: int
    requests_pending_max: int
    heartbeat_timeout_ms: int = 0
    compressions: tuple[str, ...] = ()
    is_member: bool = False
    """Whether the node has joined its cluster under its name."""
    role: str = ""
    """Role of the node in the cells layer; empty without one."""
    zone: str = ""
    is_tunnel: bool = False
    """Whether the client requests a tunnel; never set by servers (3.6)."""
    accepts_traces: bool = False
    """Whether requests to this node may carry a trace context."""
    nonce: bytes = b""
    """Random bytes for this connection in a cluster with a secret, else empty (3.7)."""


class ProofFrame(msgspec.Struct, gc=False):
    """Version 3: proof that the sender has the cluster secret; follows both hellos (3.7)."""

    proof: bytes


class CancelFrame(msgspec.Struct, gc=False):
    """Version 3: the caller no longer waits for the request with this id (3.3)."""

    id: int


class PingFrame(msgspec.Struct, gc=False):
    """Version 3: heartbeat; the peer replies with a pong of the same id (3.3)."""

    id: int


class PongFrame(msgspec.Struct, gc=False):
    """Version 3: reply to the ping with the same id."""

    id: int


class GoodbyeFrame(msgspec.Struct, gc=False):
    """Version 3: the sender will close; no new requests may be sent to it (3.3)."""

    code: int
    reason: str


Frame: TypeAlias = (
    RequestFrame
    | ReplyFrame
    | HelloFrame
    | ProofFrame
    | CancelFrame
    | PingFrame
    | PongFrame
    | GoodbyeFrame
)


class ConnectionOpened(msgspec.Struct, frozen=True):
    """The handshake has finished; frames may be sent."""

    version: int


class FrameIgnored(msgspec.Struct, frozen=True):
    """The peer sent a frame in the wrong direction, which versions 1 and 2 ignore."""

    kind: str
    id: int


ConnectionEvent: TypeAlias = (
    RequestFrame | ReplyFrame | CancelFrame | GoodbyeFrame | ConnectionOpened | FrameIgnored
)
