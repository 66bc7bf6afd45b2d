"""What a connection reports beside the frames themselves."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .frames import CancelFrame, GoodbyeFrame, ReplyFrame, RequestFrame


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
