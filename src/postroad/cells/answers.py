"""What a call ends with."""

from __future__ import annotations

from typing import NamedTuple

from .path import CellPath


class CellReply(NamedTuple):
    """A reply, as whoever waits for it gets it."""

    content: str
    payload: bytes
    path: CellPath = CellPath()
    """The way it took; empty if it never left this domain."""


EMPTY_REPLY = CellReply("", b"")
"""The answer of whoever has nothing to say but that it is done."""
