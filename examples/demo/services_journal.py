"""What nodes of services write down of each call, event and stream, to be compared in the end."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec


class Tried(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A call to another node ended; one that is tried again is another call."""

    action: str
    id: str
    node: str
    """The one that was called."""
    began_s: float
    """This and the next on the clock of `time.monotonic`."""
    ended_s: float
    error: str = ""
    """Its name; empty if there was a result."""


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """A call of another node came to an action."""

    action: str
    id: str


class Emitted(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """An event was emitted."""

    number: int
    at_s: float


class Heard(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """An event came to a handler."""

    number: int


class Streamed(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A stream ended, as the node has it that asked for it."""

    number: int
    began_s: float
    ended_s: float
    size: int = 0
    digest: str = ""
    error: str = ""
    """The name of what it broke off with."""


class Summed(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A stream was sent or read to its end, as the node has it that was asked."""

    number: int
    size: int
    digest: str


Entry: TypeAlias = Tried | Taken | Emitted | Heard | Streamed | Summed


def read_services_journal(path: Path) -> list[Entry]:
    """Everything the processes of a node have written, one after the other."""
    decode = msgspec.json.Decoder(Entry).decode
    return [decode(line) for line in path.read_bytes().splitlines()]
