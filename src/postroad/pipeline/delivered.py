"""A root as a runner gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from .job import Segment
from .media.medium import Undecodable
from .records import PenRoot


class Delivered(NamedTuple):
    """A root, with what a runner must know of it."""

    root: int
    task: str
    """The task it comes in by."""
    generation: int
    segment: Segment | Undecodable
    published: frozenset[int] = frozenset()
    """Outputs that were written in an earlier attempt."""
    raw: bytes = b""
    """As the input has it; nothing if it comes again."""


def decode(raw: bytes, decoder: Callable[[bytes], Segment]) -> Segment | Undecodable:
    """What an input has, as a segment if it is one."""
    try:
        return decoder(raw)
    except Exception as error:
        return Undecodable(raw, str(error))


def deliver_again(root: PenRoot) -> Delivered:
    """A root that failed before."""
    return to_delivered(root.root, root.task, root.generation, root.segment, root.published)


def to_delivered(
    root: int, task: str, generation: int, kept: bytes, published: Iterable[int]
) -> Delivered:
    """A root as the pen keeps it; bytes instead of a segment are what never was one."""
    found = msgspec.msgpack.decode(kept)
    segment = found if isinstance(found, dict) else Undecodable(found, "it never was one")
    return Delivered(root, task, generation, segment, frozenset(published))
