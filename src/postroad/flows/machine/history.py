"""The history of a flow: its completed commands, in the order of their completion."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from postroad.flows.machine.values import RecordedError

Position: TypeAlias = tuple[int, ...]
"""Where a command is in the code: its number in its branch, after the position of the branch."""


class CommandKind(StrEnum):
    """Kinds of commands."""

    OPEN = "open"
    SEND = "send"
    RECEIVE = "receive"
    INFO = "info"
    CLOSE = "close"
    STEP = "step"
    TRANSACTION = "transaction"
    """A block `flow.transaction()` of version 0.1, which cannot be replayed."""
    SLEEP = "sleep"
    SIGNAL = "signal"
    PATCH = "patch"
    START = "start"
    CANCEL = "cancel"


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One completed command and its result."""

    position: Position
    kind: CommandKind
    name: str
    """Name of the function, peer or signal."""
    digest: bytes
    """Digest of the arguments; empty if they cannot be compared."""
    at_ms: int
    value: bytes | None = None
    error: RecordedError | None = None
    sessions: tuple[int, ...] = ()
    """Numbers of its sessions."""
    peers: tuple[str, ...] = ()
    """Nodes at the other ends of those sessions."""

    @property
    def label(self) -> str:
        """Position and kind, for operators."""
        return command_label(self.position, self.kind, self.name)


def command_label(position: Position, kind: CommandKind, name: str) -> str:
    """Return position, kind and name of a command as text."""
    place = ".".join(map(str, position))
    return f"{place} {kind}({name})" if name else f"{place} {kind}"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HistoryEntry)


def encode_history_entry(entry: HistoryEntry) -> bytes:
    """Return an entry as it is stored."""
    return _encoder.encode(entry)


def decode_history_entry(encoded: bytes) -> HistoryEntry:
    """Return a stored entry; raises msgspec.DecodeError if this version cannot read it."""
    try:
        return _decoder.decode(encoded)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
