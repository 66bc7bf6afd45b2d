"""Messages as cells see them: content types, bodies, replies, pings. Nothing is ever unpickled.

Bytes and text are sent unchanged. All other values that msgspec can encode are sent as MessagePack
and decoded as plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from postroad.cells.addresses import CellAddress, CellPath
from postroad.core.errors import ConfigError, MalformedPayloadError

BYTES = ""
TEXT = "text"
JSON = "json"
MSGPACK = "msgpack"
COMMAND = "command"
"""A command line of an operator, run by the cell."""
PING = "postroad.ping"
"""A ping: the runner of every cell replies with the path that the ping took."""


def encode_body(body: Any) -> tuple[str, bytes]:
    """Return content type and payload of a body; raises ConfigError if it cannot be encoded.

    None is sent as an empty payload.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        return BYTES, bytes(body)
    if body is None:
        return BYTES, b""
    try:
        if isinstance(body, str):
            return TEXT, body.encode()
        return MSGPACK, msgspec.msgpack.encode(body)
    except Exception as error:
        # Encoding may run code of the values, such as `__getattr__`, which may raise anything.
        raise ConfigError(f"cannot encode a body of type {type(body).__name__}: {error}") from None


def decode_body(content_type: str, payload: bytes) -> Any:
    """Return the decoded payload; raises MalformedPayloadError if it is not of its content type."""
    if content_type == BYTES:
        return payload
    read = _READERS.get(content_type)
    if read is None:
        supported = ", ".join(_READERS)
        raise MalformedPayloadError(
            f"unknown content type {content_type!r}; supported: {supported}"
        )
    try:
        return read(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"payload is not valid {content_type}: {error}") from None


_READERS: dict[str, Callable[[bytes], Any]] = {
    TEXT: bytes.decode,
    COMMAND: bytes.decode,
    JSON: msgspec.json.decode,
    MSGPACK: msgspec.msgpack.decode,
}


_EMPTY_PATH = CellPath()


class CellMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as the handler of a cell gets it."""

    payload: bytes
    content_type: str = BYTES
    """Encoding of the payload; see `body`."""
    sender: CellAddress | None = None
    """The cell that sent it, or the last cell that forwarded it; see `path`."""
    route_name: str | None = None
    """The queue or topic by which it was routed to this cell, if any."""
    id: bytes = b""
    wants_reply: bool = False
    """Whether the sender waits for the return value of the handler."""
    deadline: float | None = None
    """When the sender stops waiting, by the clock of the event loop; None if it set no timeout."""
    session: str | None = None
    headers: dict[str, str] | None = None
    path: CellPath = _EMPTY_PATH
    """Sender and all forwarders, oldest first: cells, and domains as `*@domain`.

    Hops before `sender` are claims of the sender that were not verified.
    """
    transaction: Any = None
    """Of a durable message: writes through it are committed once, together with its ack."""

    @property
    def body(self) -> Any:
        """The decoded payload; raises MalformedPayloadError if it is not of its content type."""
        return decode_body(self.content_type, self.payload)


class CellReply(NamedTuple):
    """A reply to a call."""

    content_type: str
    payload: bytes
    path: CellPath = CellPath()
    """The path that it took; empty if it never left this domain."""


EMPTY_REPLY = CellReply("", b"")
"""Completes a durable delivery, which has no return value."""


class PongBody(msgspec.Struct, frozen=True):
    """Payload of the reply to a ping."""

    path: tuple[str, ...] = msgspec.field(name="way")
    """All hops of the ping, oldest first. Its name on the wire is `way`."""


def build_pong(message: CellMessage) -> PongBody:
    """Return the payload that a cell replies to a ping."""
    return PongBody(tuple(map(str, message.path.hops)))


def decode_pong(payload: bytes) -> CellPath:
    """Return the path of a ping; raises MalformedPayloadError if the payload is no pong."""
    try:
        pong = msgspec.msgpack.decode(payload, type=PongBody)
        return CellPath.of(*pong.path)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"payload is no reply to a ping: {error}") from None
