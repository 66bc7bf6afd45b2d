"""What payloads hold: bytes, and the name of how to read them. Nothing is ever unpickled.

Bytes and text stay what they are. Whatever else msgspec can write travels as MessagePack, and is
read as plain values.
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
"""A line for the operators' side of a cell."""
PING = "postroad.ping"
"""Answered by every cell on its own, with the way the ping took."""


def encode_body(body: Any) -> tuple[str, bytes]:
    """The content and payload of what somebody wants to send; raises ConfigError if neither fits.

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
        # Encoding may run code of the values themselves.
        raise ConfigError(f"a {type(body).__name__} cannot be sent: {error}") from None


def decode_body(content_type: str, payload: bytes) -> Any:
    """What a payload holds; raises MalformedPayloadError if it is not what its content says."""
    if content_type == BYTES:
        return payload
    read = _READERS.get(content_type)
    if read is None:
        supported = ", ".join(_READERS)
        raise MalformedPayloadError(f"content {content_type!r} is not known; known are {supported}")
    try:
        return read(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"no {content_type}: {error}") from None


_READERS: dict[str, Callable[[bytes], Any]] = {
    TEXT: bytes.decode,
    COMMAND: bytes.decode,
    JSON: msgspec.json.decode,
    MSGPACK: msgspec.msgpack.decode,
}


_EMPTY_PATH = CellPath()


class CellMessage(msgspec.Struct, frozen=True, gc=False):
    """What a handler is given."""

    payload: bytes
    content_type: str = BYTES
    """Says how to read the payload."""
    sender: CellAddress | None = None
    """The cell that sent it, or sent it on: the last one that did, see `way`."""
    route_name: str | None = None
    """The queue or topic it was sent to, if that is why this cell gets it."""
    id: bytes = b""
    wants_reply: bool = False
    """Whether somebody waits for what the handler returns."""
    deadline: float | None = None
    """Time of the event loop's clock when the sender stops caring, where it told."""
    session: str | None = None
    headers: dict[str, str] | None = None
    path: CellPath = _EMPTY_PATH
    """Who sent it and everybody who sent it on, oldest first; cells, and domains as `*@domain`.

    What is before the sender is what the sender says.
    """
    transaction: Any = None
    """Of a guaranteed message: what is written through it happens once, with the message."""

    @property
    def body(self) -> Any:
        """The decoded payload; raises MalformedPayloadError if it is not of its content type."""
        return decode_body(self.content_type, self.payload)


class CellReply(NamedTuple):
    """A reply, as whoever waits for it gets it."""

    content_type: str
    payload: bytes
    path: CellPath = CellPath()
    """The way it took; empty if it never left this domain."""


EMPTY_REPLY = CellReply("", b"")
"""The answer of whoever has nothing to say but that it is done."""


class PongBody(msgspec.Struct, frozen=True):
    """The answer to a ping."""

    path: tuple[str, ...] = msgspec.field(name="way")
    """Everybody who sent the ping on, oldest first."""


def build_pong(message: CellMessage) -> PongBody:
    """What a cell answers."""
    return PongBody(tuple(map(str, message.path.hops)))


def decode_pong(payload: bytes) -> CellPath:
    """The way a ping took; raises MalformedPayloadError for anything that is no answer to one."""
    try:
        pong = msgspec.msgpack.decode(payload, type=PongBody)
        return CellPath.of(*pong.path)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"no answer to a ping: {error}") from None
