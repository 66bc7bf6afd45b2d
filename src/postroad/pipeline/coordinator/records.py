"""Records of deliveries, roots and failed attempts."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from postroad.pipeline.connectors.connector import (
    Position,
    UndecodableRecord,
    encode_segment,
)
from postroad.pipeline.connectors.encoding import UNENCODABLE
from postroad.pipeline.job import Segment


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


def merge_failures(failed: Iterable[FailedRoot]) -> list[FailedRoot]:
    """Reports of one root by several tasks as one: what is published is what none of them lacks."""
    merged: dict[int, FailedRoot] = {}
    for it in failed:
        known = merged.get(it.root)
        if known is not None:
            tasks = sorted({*known.attempt.missing, *it.attempt.missing})
            it = msgspec.structs.replace(
                known,
                attempt=msgspec.structs.replace(known.attempt, missing=tasks),
                published=sorted({*known.published} & {*it.published}),
            )
        merged[it.root] = it
    return list(merged.values())


def to_signed(value: int) -> int:
    """64 bits as databases know them."""
    return value - (1 << 64) if value >> 63 else value


def to_unsigned(value: int) -> int:
    """64 bits as everybody else does."""
    return value & (1 << 64) - 1


class RootInput(NamedTuple):
    """A root, with what a runner must know of it."""

    root: int
    task: str
    """The task it comes in by."""
    generation: int
    segment: Segment | UndecodableRecord
    published: frozenset[int] = frozenset()
    """Outputs that were written in an earlier attempt."""
    raw: bytes = b""
    """As the input has it; nothing if it comes again."""


def decode_or_reject(
    raw: bytes, decoder: Callable[[bytes], Segment]
) -> Segment | UndecodableRecord:
    """What an input has, as a segment if it is one."""
    try:
        return decoder(raw)
    except Exception as error:
        return UndecodableRecord(raw, str(error))


def to_root_input(
    root: int, task: str, generation: int, kept: bytes, published: Iterable[int]
) -> RootInput:
    """A root as the pen keeps it; bytes instead of a segment are what never was one."""
    found = msgspec.msgpack.decode(kept)
    segment = found if isinstance(found, dict) else UndecodableRecord(found, "it never was one")
    return RootInput(root, task, generation, segment, frozenset(published))


_ERROR_CHARS_MAX = 2_000
# What bytes begin with in MsgPack.
_RAW_MARKS = (0xC4, 0xC5, 0xC6)


def make_failed_attempt(
    generation: int,
    now_ms: int,
    entry: str,
    failures: Sequence[tuple[str, str]],
    missing: int,
) -> SegmentAttempt:
    """Tell what happened.

    Args:
        generation: how often the root was delivered before.
        now_ms: the time.
        entry: the task it came in by.
        failures: tasks that failed, with what they say of it, the first one first.
        missing: how much of what was made of it never arrived, if nothing failed.
    """
    tasks = [task for task, _ in failures]
    lost = f"{missing} of what was made of it never arrived"
    error = failures[0][1] if failures else lost
    return SegmentAttempt(generation, now_ms, tasks[0] if tasks else entry, error, tasks)


def describe_exception(error: Exception) -> str:
    """An exception in so many words; even if it cannot be told."""
    try:
        text = str(error)
    except Exception:
        text = "it cannot even be told"
    return _printable(f"{type(error).__name__}: {text}")


def _printable(text: str) -> str:
    """Short enough, and without the halves of characters that no file or database takes."""
    return text[:_ERROR_CHARS_MAX].encode(errors="backslashreplace").decode()


def encode_for_retry(segment: Segment, raw: bytes) -> bytes:
    """A segment as the pen keeps it; what cannot be kept so, as the input has it."""
    try:
        return encode_segment(segment)
    except UNENCODABLE:
        return encode_segment(raw)


def can_retry(kept: bytes) -> bool:
    """Whether that is a segment, which can come again."""
    return kept[0] not in _RAW_MARKS


def reject_undecodable(
    root: int, task: str, generation: int, found: UndecodableRecord, now_ms: int
) -> FailedRoot:
    """What never was a segment is dead at once."""
    error = _printable(f"it is no segment: {found.reason}")
    attempt = SegmentAttempt(generation, now_ms, task, error)
    return FailedRoot(
        root, task, generation, encode_segment(found.raw), attempt, [], is_permanent=True
    )
