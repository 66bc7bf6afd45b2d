"""What is in a message, as people can read it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

SHOWN_MAX = 16 * 1024
"""Characters of a body that are shown."""
# Larger ones are not read as a whole, only to show some of it.
_READ_BYTES_MAX = 1024 * 1024
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r")


class Body(NamedTuple):
    """A body that can be read."""

    text: str
    encoding: str
    """`json`, `text`, `msgpack` or `hex`."""


def show_body(body: bytes) -> Body:
    """A body as JSON or text if it is that, as the JSON of what MsgPack says, or in hexadecimal."""
    if len(body) > _READ_BYTES_MAX:
        return _show_some(body)
    text = _text_of(body)
    if text is not None:
        return Body(text[:SHOWN_MAX], "json" if _is_json(body) else "text")
    said = _unpacked(body)
    if said is not None:
        return Body(said[:SHOWN_MAX], "msgpack")
    return _in_hexadecimal(body)


def write_body(body: object) -> bytes:
    """What an operator wants to send: a text as it is, everything else as JSON."""
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _show_some(body: bytes) -> Body:
    # A character may be cut in two, which takes four bytes at most.
    for end in range(SHOWN_MAX, SHOWN_MAX - 4, -1):
        text = _text_of(body[:end])
        if text is not None:
            return Body(text, "text")
    return _in_hexadecimal(body)


def _in_hexadecimal(body: bytes) -> Body:
    return Body(body[: SHOWN_MAX // 2].hex(), "hex")


def _text_of(body: bytes) -> str | None:
    if not _CONTROL.isdisjoint(body):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _unpacked(body: bytes) -> str | None:
    """What MsgPack says, unless it is a single number: nearly every byte is one of those."""
    try:
        said = msgspec.msgpack.decode(body)
        if isinstance(said, int | float | None):
            return None
        return msgspec.json.encode(said).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
        return None
