"""What payloads hold: bytes, and the name of how to read them. Nothing is ever unpickled.

Bytes and text stay what they are. Whatever else msgspec can write travels as MessagePack, and is
read as plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

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


def decode_body(content: str, payload: bytes) -> Any:
    """What a payload holds; raises MalformedPayloadError if it is not what its content says."""
    if content == BYTES:
        return payload
    read = _READERS.get(content)
    if read is None:
        known = ", ".join(_READERS)
        raise MalformedPayloadError(f"content {content!r} is not known; known are {known}")
    try:
        return read(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"no {content}: {error}") from None


_READERS: dict[str, Callable[[bytes], Any]] = {
    TEXT: bytes.decode,
    COMMAND: bytes.decode,
    JSON: msgspec.json.decode,
    MSGPACK: msgspec.msgpack.decode,
}
