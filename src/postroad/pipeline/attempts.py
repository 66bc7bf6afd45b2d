"""Why a root was not done with, as the pen keeps it."""

from __future__ import annotations

from collections.abc import Sequence

from .job import Segment
from .media.medium import UndecodableRecord, encode_segment
from .media.packing import UNENCODABLE
from .records import SegmentAttempt, FailedRoot

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


def reject_undecodable(root: int, task: str, generation: int, found: UndecodableRecord, now_ms: int) -> FailedRoot:
    """What never was a segment is dead at once."""
    error = _printable(f"it is no segment: {found.reason}")
    attempt = SegmentAttempt(generation, now_ms, task, error)
    return FailedRoot(
        root, task, generation, encode_segment(found.raw), attempt, [], is_permanent=True
    )
