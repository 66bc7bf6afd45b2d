"""What travels after the handshake. Requests go from the dialing side, replies come back.

On a tunnel requests go both ways, and nothing comes back.

Decoders create these, handlers and callers read them; nobody keeps them. They hold plain
integers where an enum would cost a look-up per frame.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from postroad.core.errors import FrameTooLargeError, MalformedFrameError
from postroad.core.names import Address
from postroad.core.tracing import SpanContext

Bytes: TypeAlias = bytes | memoryview


def decode_utf8(data: Bytes, what: str, request_id: int | None = None) -> str:
    """UTF-8 from a peer."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFrameError(
            f"{what} is not valid UTF-8: {error.reason}", request_id
        ) from None


def check_frame_size(size: int, maximum: int) -> None:
    """Refuse a frame by its announced size, before any memory is taken for it."""
    if size > maximum:
        raise frame_too_large_error(size, maximum)


def frame_too_large_error(size: int, maximum: int) -> FrameTooLargeError:
    """The error for a frame that announces more than is accepted."""
    return FrameTooLargeError(f"a frame of {size} bytes was announced, {maximum} are accepted")


class ConnectionRole(enum.Enum):
    """Which side of a connection a machine is."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def opposite(self) -> ConnectionRole:
        """The role of the peer."""
        return ConnectionRole.SERVER if self is ConnectionRole.CLIENT else ConnectionRole.CLIENT


class ReplyStatus(enum.IntEnum):
    """How a request ended. 0 to 3 are known to every version, the others to version 3."""

    OK = 0
    NO_HANDLER = 1
    HANDLER_FAILED = 2
    PROTOCOL_FAILED = 3
    STOPPING = 4


class RequestFrame(msgspec.Struct, gc=False):
    """A message to a subject. `timeout_ms` 0 means that the sender told no deadline."""

    id: int
    subject: str
    payload: bytes
    timeout_ms: int = 0
    one_way: bool = False
    trace: SpanContext | None = None
    """Version 3: the span it belongs to, where the sender told."""


class ReplyFrame(msgspec.Struct, gc=False):
    """The answer to the request of that id; on failure the payload is text."""

    id: int
    status: int
    payload: bytes
    code: int = 0
    retryable: bool = False


class HelloFrame(msgspec.Struct, frozen=True):
    """Version 3: who is speaking and what it can do. First frame of either side."""

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
    """The part the node plays among cells; empty if it plays none."""
    zone: str = ""
    is_tunnel: bool = False
    """Whether the client wants this connection to be a tunnel; servers never say so."""
    accepts_traces: bool = False
    """Whether requests to it may tell the span they belong to."""
    nonce: bytes = b""
    """Drawn for this connection by a node whose cluster has a secret, else empty."""


class ProofFrame(msgspec.Struct, gc=False):
    """Version 3: that the sender knows the secret of the cluster. Follows both hellos."""

    proof: bytes


class CancelFrame(msgspec.Struct, gc=False):
    """Version 3: the sender no longer waits for the request of that id."""

    id: int


class PingFrame(msgspec.Struct, gc=False):
    """Version 3: heartbeat; answered with a Pong of the same id."""

    id: int


class PongFrame(msgspec.Struct, gc=False):
    """Version 3: answer to the Ping of that id."""

    id: int


class GoodbyeFrame(msgspec.Struct, gc=False):
    """Version 3: the sender will close; nothing new should be sent to it."""

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
    """The handshake is done: frames may be sent."""

    version: int


class FrameIgnored(msgspec.Struct, frozen=True):
    """The peer sent a frame that has no place here but does no harm."""

    kind: str
    id: int


ConnectionEvent: TypeAlias = (
    RequestFrame | ReplyFrame | CancelFrame | GoodbyeFrame | ConnectionOpened | FrameIgnored
)
