"""Pings: every cell answers them by itself, with the way they took."""

from __future__ import annotations

import msgspec

from postroad.core.errors import MalformedPayloadError

from .message import CellMessage
from .path import CellPath


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
