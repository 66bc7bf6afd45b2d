"""Pings: every cell answers them by itself, with the way they took."""

from __future__ import annotations

import msgspec

from postroad.core.errors import MalformedPayload

from .message import CellMessage
from .path import CellPath


class Pong(msgspec.Struct, frozen=True):
    """The answer to a ping."""

    way: tuple[str, ...]
    """Everybody who sent the ping on, oldest first."""


def answer_ping(message: CellMessage) -> Pong:
    """What a cell answers."""
    return Pong(tuple(map(str, message.way.hops)))


def read_pong(payload: bytes) -> CellPath:
    """The way a ping took; raises MalformedPayload for anything that is no answer to one."""
    try:
        pong = msgspec.msgpack.decode(payload, type=Pong)
        return CellPath.of(*pong.way)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedPayload(f"no answer to a ping: {error}") from None
