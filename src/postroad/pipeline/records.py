"""What is in the holding pen, as Python sees it."""

from __future__ import annotations

import enum

import msgspec

from .media.medium import Position


class RootState(enum.StrEnum):
    """Where a root is that failed before."""

    WAITING = "waiting"
    """It comes again when it is due."""
    PENDING = "pending"
    """It was delivered."""
    DEAD = "dead"
    """It comes again only if somebody says so."""


class SegmentAttempt(msgspec.Struct, frozen=True):
    """One delivery of a root that was not done with."""

    generation: int
    at_ms: int
    task: str
    """The task that failed."""
    error: str
    missing: list[str] = []
    """All tasks that failed."""


class StoredRoot(msgspec.Struct, frozen=True):
    """A root that failed."""

    root: int
    task: str
    """The task it comes in by."""
    state: RootState
    generation: int
    due_ms: int
    segment: bytes
    history: list[SegmentAttempt]
    published: list[int]
    """Ids of outputs that are written already, and not to be written again."""


class RetryRoot(msgspec.Struct, frozen=True, array_like=True):
    """As much of it as it takes to do it again."""

    root: int
    generation: int
    segment: bytes
    published: list[int]


class InputDelivery(msgspec.Struct, frozen=True):
    """What a runner gets in one go."""

    number: int
    task: str
    position: Position | None
    """Where to read; None if it is roots that come again."""
    segments: int
    generation: int
    started_ms: int
    committed_batches_at_start: int
    """How many batches of the job were settled before it was admitted."""


class FailedRoot(msgspec.Struct, frozen=True):
    """A root that a batch could not finish."""

    root: int
    task: str
    generation: int
    segment: bytes
    attempt: SegmentAttempt
    published: list[int]
    is_permanent: bool = False
    """Whether to try again would change nothing."""


def to_signed(value: int) -> int:
    """64 bits as databases know them."""
    return value - (1 << 64) if value >> 63 else value


def to_unsigned(value: int) -> int:
    """64 bits as everybody else does."""
    return value & (1 << 64) - 1
