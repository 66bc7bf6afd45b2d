"""What is written down of a flow: its steps, in the order in which they were done."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from postroad.flows.machine.values import RecordedError

Position: TypeAlias = tuple[int, ...]
"""Where in the code a step is: its number, within its branch, within the step that branched."""


class CommandKind(StrEnum):
    """What code can ask for."""

    OPEN = "open"
    SEND = "send"
    RECEIVE = "receive"
    INFO = "info"
    CLOSE = "close"
    STEP = "step"
    TRANSACTION = "transaction"
    """A block `flow.transaction()`, which version 0.1 had: it cannot be replayed."""
    SLEEP = "sleep"
    SIGNAL = "signal"
    PATCH = "patch"


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One step: what the code asked for, and what it was given."""

    position: Position
    kind: CommandKind
    name: str
    """Of the function, the peer, the signal."""
    digest: bytes
    """Of its arguments; empty where they cannot be compared."""
    at_ms: int
    value: bytes | None = None
    error: RecordedError | None = None
    sessions: tuple[int, ...] = ()
    """Numbers of the sessions it is about."""
    peers: tuple[str, ...] = ()
    """Whom those sessions are with."""

    @property
    def label(self) -> str:
        """How it is shown."""
        return command_label(self.position, self.kind, self.name)


def command_label(position: Position, kind: CommandKind, name: str) -> str:
    """How a step is shown: where it is, and what it does."""
    place = ".".join(map(str, position))
    return f"{place} {kind}({name})" if name else f"{place} {kind}"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HistoryEntry)


def encode_history_entry(entry: HistoryEntry) -> bytes:
    """A record as it is in the store."""
    return _encoder.encode(entry)


def decode_history_entry(encoded: bytes) -> HistoryEntry:
    """A record from the store; raises msgspec.DecodeError if it is of another making."""
    try:
        return _decoder.decode(encoded)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
