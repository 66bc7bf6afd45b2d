"""A root as a runner gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from .job import Segment
from .media.medium import UndecodableRecord
from .records import StoredRoot


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


def decode_or_reject(raw: bytes, decoder: Callable[[bytes], Segment]) -> Segment | UndecodableRecord:
    """What an input has, as a segment if it is one."""
    try:
        return decoder(raw)
    except Exception as error:
        return UndecodableRecord(raw, str(error))


def to_retry_input(root: StoredRoot) -> RootInput:
    """A root that failed before."""
    return to_root_input(root.root, root.task, root.generation, root.segment, root.published)


def to_root_input(
    root: int, task: str, generation: int, kept: bytes, published: Iterable[int]
) -> RootInput:
    """A root as the pen keeps it; bytes instead of a segment are what never was one."""
    found = msgspec.msgpack.decode(kept)
    segment = found if isinstance(found, dict) else UndecodableRecord(found, "it never was one")
    return RootInput(root, task, generation, segment, frozenset(published))
