"""Stored panes and emitted extents."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from postroad.pipeline.job import TriggerType
from postroad.pipeline.windows.compiled import NO_TIME, CompiledWindow


class PaneKey(NamedTuple):
    """Which pane of a window it is."""

    group: bytes
    lower: float


class Pane(msgspec.Struct, array_like=True):
    """What is known of one group and extent."""

    lower: float
    latest: float
    """The latest time of its segments."""
    state: Any
    segments: int = 0
    """How many segments the state is made of."""
    total: int = 0
    """How many there have ever been."""
    firings: int = 0
    """The number of the last emission."""
    fired: dict[int, int] = {}
    """For each trigger that has emitted it: the total at that time."""

    def has_news(self, trigger_index: int) -> bool:
        """Whether there is something that a trigger has not emitted."""
        return self.segments > 0 and self.total > self.fired.get(trigger_index, 0)

    def absorb(self, other: Pane, window: CompiledWindow) -> None:
        """Become one with another pane."""
        self.lower = min(self.lower, other.lower)
        self.latest = max(self.latest, other.latest)
        self.state = window.aggregation.merge(self.state, other.state)
        self.segments += other.segments
        self.total += other.total
        self.firings = max(self.firings, other.firings)
        for index, total in other.fired.items():
            self.fired[index] = self.fired.get(index, 0) + total


class WindowProgress(msgspec.Struct, array_like=True):
    """What is known of a whole window."""

    latest: float = NO_TIME
    """The latest time of a segment."""
    late: int = 0
    """How many segments were dropped because their extent was forgotten; a segment counts for
    each extent."""
    firings_forgotten: int = 0
    """The highest number of an emission among panes that are forgotten."""
    due_s: dict[int, float] = {}
    """When timers go off: those for which something waits."""


_decode_pane = msgspec.msgpack.Decoder(Pane).decode
decode_window_progress = msgspec.msgpack.Decoder(WindowProgress).decode
_encode = msgspec.msgpack.encode


def head_row_key(window: str) -> bytes:
    """The key of the row of a window."""
    return _encode([window])


def pane_row_key(window: str, key: PaneKey) -> bytes:
    """The key of the row of a pane."""
    return _encode([window, key.group, key.lower])


def encode_row(value: Pane | WindowProgress) -> bytes:
    """The value of a row."""
    return _encode(value)


class PaneRow(NamedTuple):
    """A row that was read: a pane with its group, or a head without."""

    window: str
    group: bytes
    content: Pane | WindowProgress


def decode_row(key: bytes, value: bytes) -> PaneRow:
    """What a row says."""
    match msgspec.msgpack.decode(key):
        case [str(window)]:
            return PaneRow(window, b"", decode_window_progress(value))
        case [str(window), bytes(group), float()]:
            return PaneRow(window, group, _decode_pane(value))
        case other:
            raise ValueError(f"{other!r:.80} is not the key of a row of windows")


def decode_pane_window(key: bytes) -> str:
    """The window that the key of a row belongs to."""
    return str(msgspec.msgpack.decode(key)[0])


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a window, of one group, over one stretch of time.

    Window, group, lower bound and firing say which one it is, for ever.
    """

    window: str
    group: Any
    lower: float | None
    """Where it begins, in seconds; None in a global window."""
    upper: float | None
    """Where it ends; itself no part of it."""
    value: Any
    """What the segments add up to."""
    segments: int
    """How many they are."""
    firing: int
    """How often it was emitted, this time included; in sessions numbers may be left out."""
    trigger: TriggerType
    trigger_index: int
    """Where in the job's list the trigger is."""
