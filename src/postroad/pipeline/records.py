"""What is in the holding pen, as Python sees it."""

from __future__ import annotations

import enum

import msgspec

from .media.medium import Place


class State(enum.StrEnum):
    """Where a root is that failed before."""

    WAITING = "waiting"
    """It comes again when it is due."""
    PENDING = "pending"
    """It was delivered."""
    DEAD = "dead"
    """It comes again only if somebody says so."""


class Attempt(msgspec.Struct, frozen=True):
    """One delivery of a root that was not done with."""

    generation: int
    at_ms: int
    task: str
    """The task that failed."""
    error: str
    missing: list[str] = []
    """All tasks that failed."""


class PenRoot(msgspec.Struct, frozen=True):
    """A root that failed."""

    root: int
    task: str
    """The task it comes in by."""
    state: State
    generation: int
    due_ms: int
    segment: bytes
    history: list[Attempt]
    published: list[int]
    """Ids of outputs that are written already, and not to be written again."""


class KeptRoot(msgspec.Struct, frozen=True, array_like=True):
    """As much of it as it takes to do it again."""

    root: int
    generation: int
    segment: bytes
    published: list[int]


class Delivery(msgspec.Struct, frozen=True):
    """What a runner gets in one go."""

    number: int
    task: str
    place: Place | None
    """Where to read; None if it is roots that come again."""
    segments: int
    generation: int
    admitted_ms: int
    settled_then: int
    """How many batches of the job were settled before it was admitted."""


class FailedRoot(msgspec.Struct, frozen=True):
    """A root that a batch could not finish."""

    root: int
    task: str
    generation: int
    segment: bytes
    attempt: Attempt
    published: list[int]
    is_hopeless: bool = False
    """Whether to try again would change nothing."""


def to_signed(value: int) -> int:
    """64 bits as databases know them."""
    return value - (1 << 64) if value >> 63 else value


def to_unsigned(value: int) -> int:
    """64 bits as everybody else does."""
    return value & (1 << 64) - 1
