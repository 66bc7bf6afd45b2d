"""A root as a runner gets it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .job import Segment
from .media.medium import Undecodable
from .records import PenRoot

encode_segment = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Delivered(NamedTuple):
    """A root, with what a runner must know of it."""

    root: int
    task: str
    """The task it comes in by."""
    generation: int
    segment: Segment | Undecodable
    published: frozenset[int] = frozenset()
    """Outputs that were written in an earlier attempt."""


def deliver_again(root: PenRoot) -> Delivered:
    """A root that failed before; bytes instead of a segment are what never was one."""
    found = _decode(root.segment)
    segment = found if isinstance(found, dict) else Undecodable(found, "it never was one")
    return Delivered(root.root, root.task, root.generation, segment, frozenset(root.published))
