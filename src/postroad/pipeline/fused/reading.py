"""Slices of inputs, cut into pieces and decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from postroad.pipeline.attempts import keep, refuse
from postroad.pipeline.delivered import to_delivered
from postroad.pipeline.job import Segment
from postroad.pipeline.media.medium import (
    Chunk,
    InputMedium,
    Undecodable,
    decode_segment,
    encode_segment,
)
from postroad.pipeline.program import Program
from postroad.pipeline.records import FailedRoot, KeptRoot

from .calls import call_all, forget_frames
from .clock import now_ms
from .ids import Ids, root_ids

PIECE_SEGMENTS = 2048
"""Few enough for a processor's cache, many enough to pay for the calls of NumPy."""


class Read(NamedTuple):
    """What a piece has."""

    generation: int
    roots: Ids
    raws: Sequence[bytes]
    segments: list[Segment]
    refused: list[FailedRoot]
    """Besides: what is no segment, or none that can go on."""
    decode: Callable[[bytes], Segment]
    """What made segments of what was read."""
    published: Mapping[int, list[int]] = {}
    """Of roots that come again, by their places: the ids of outputs that are written already."""

    @property
    def total(self) -> int:
        """How many roots it has."""
        return len(self.segments) + len(self.refused)

    def keep(self, place: int) -> bytes:
        """A root as the pen keeps it, even if its segment was changed since."""
        raw = self.raws[place]
        return keep(self.decode(raw), raw)


def read_pieces(
    program: Program, task: str, generation: int, medium: InputMedium, chunks: Iterable[Chunk]
) -> Iterator[Read]:
    """The pieces of a slice."""
    for chunk in chunks:
        for start in range(0, len(chunk.raws), PIECE_SEGMENTS):
            stop = start + PIECE_SEGMENTS
            roots = root_ids(program.bits, task, chunk.source, chunk.positions[start:stop])
            yield _decode(program, task, generation, medium, roots, chunk.raws[start:stop])


def read_again(task: str, roots: Iterable[KeptRoot]) -> Iterator[Read]:
    """Roots that come again, in pieces of one generation each."""
    waiting: dict[int, list[KeptRoot]] = {}
    for root in roots:
        those = waiting.setdefault(root.generation, [])
        those.append(root)
        if len(those) == PIECE_SEGMENTS:
            yield _unpack(task, root.generation, waiting.pop(root.generation))
    for generation, those in waiting.items():
        yield _unpack(task, generation, those)


def _unpack(task: str, generation: int, roots: Sequence[KeptRoot]) -> Read:
    segments: list[Segment] = []
    kept: list[KeptRoot] = []
    refused: list[FailedRoot] = []
    for it in roots:
        found = to_delivered(it.root, task, it.generation, it.segment, it.published).segment
        if isinstance(found, Undecodable):
            refused.append(refuse(it.root, task, it.generation, found, now_ms()))
        else:
            segments.append(found)
            kept.append(it)
    ids = np.array([it.root for it in kept], dtype=np.uint64)
    published = {place: it.published for place, it in enumerate(kept) if it.published}
    raws = [it.segment for it in kept]
    return Read(generation, ids, raws, segments, refused, decode_segment, published)


def _decode(
    program: Program,
    task: str,
    generation: int,
    medium: InputMedium,
    roots: Ids,
    raws: Sequence[bytes],
) -> Read:
    segments, raised = call_all(medium.decode, raws)
    odd = {place: str(error) for place, error in raised.items()}
    forget_frames(*raised.values())
    # Other formats than the pen's own have numbers, or whatever else, that rows cannot carry.
    if program.is_staged and medium.decode is not decode_segment:
        _, unkept = call_all(encode_segment, segments)
        odd |= dict.fromkeys(unkept, "it cannot go from one stage to the next")
        forget_frames(*unkept.values())
    if not odd:
        return Read(generation, roots, raws, segments, [], medium.decode)
    refused = [
        refuse(int(roots[place]), task, generation, Undecodable(raws[place], reason), now_ms())
        for place, reason in odd.items()
    ]
    kept = [place for place in range(len(raws)) if place not in odd]
    return Read(
        generation,
        roots[kept],
        [raws[place] for place in kept],
        [segments[place] for place in kept],
        refused,
        medium.decode,
    )
