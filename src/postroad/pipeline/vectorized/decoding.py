"""Decodes splits and retries into batches of roots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    InputConnector,
    RawRecords,
    UndecodableRecord,
    decode_segment,
    encode_segment,
)
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    RetryRoot,
    encode_for_retry,
    reject_undecodable,
    to_root_input,
)
from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.acks import Ids, root_ids
from postroad.pipeline.vectorized.task_calls import drop_tracebacks, map_function

PIECE_SEGMENTS = 10_240
"""Many enough to pay for the calls of NumPy."""


class DecodedRoots(NamedTuple):
    """What a piece has."""

    generation: int
    roots: Ids
    raws: Sequence[Any]
    """What `decode` takes."""
    segments: list[Segment]
    rejected: list[FailedRoot]
    """Besides: what is no segment, or none that can go on."""
    decode: Callable[[Any], Segment]
    """What made segments of what was read."""
    published: Mapping[int, list[int]] = {}
    """Of roots that come again, by their places: the ids of outputs that are written already."""
    kept: list[bytes] | None = None
    """All as the holding pen keeps them, where that is known."""

    @property
    def total(self) -> int:
        """How many roots it has."""
        return len(self.segments) + len(self.rejected)

    def encode_for_retry(self, place: int) -> bytes:
        """A root as the holding pen keeps it, even if its segment was changed since."""
        raw = self.raws[place]
        return encode_for_retry(self.decode(raw), raw)


def decode_split(
    program: CompiledJob,
    task: str,
    generation: int,
    connector: InputConnector,
    chunks: Iterable[RawRecords],
) -> Iterator[DecodedRoots]:
    """The pieces of a split."""
    for chunk in chunks:
        for start in range(0, len(chunk.raws), PIECE_SEGMENTS):
            stop = start + PIECE_SEGMENTS
            roots = root_ids(program.ack_ids, task, chunk.source, chunk.positions[start:stop])
            raws = chunk.raws[start:stop]
            yield decode_roots(program, task, generation, connector.decode, roots, raws)


def decode_retries(task: str, roots: Iterable[RetryRoot]) -> Iterator[DecodedRoots]:
    """Roots that come again, in pieces of one generation each."""
    waiting: dict[int, list[RetryRoot]] = {}
    for root in roots:
        those = waiting.setdefault(root.generation, [])
        those.append(root)
        if len(those) == PIECE_SEGMENTS:
            yield _unpack(task, root.generation, waiting.pop(root.generation))
    for generation, those in waiting.items():
        yield _unpack(task, generation, those)


def _unpack(task: str, generation: int, roots: Sequence[RetryRoot]) -> DecodedRoots:
    segments: list[Segment] = []
    kept: list[RetryRoot] = []
    refused: list[FailedRoot] = []
    for root in roots:
        given = to_root_input(root.root, task, root.generation, root.segment, root.published)
        if isinstance(given.segment, UndecodableRecord):
            refused.append(
                reject_undecodable(root.root, task, root.generation, given.segment, now_ms())
            )
        else:
            segments.append(given.segment)
            kept.append(root)
    ids = np.array([root.root for root in kept], dtype=np.uint64)
    published = {place: root.published for place, root in enumerate(kept) if root.published}
    raws = [root.segment for root in kept]
    return DecodedRoots(generation, ids, raws, segments, refused, decode_segment, published)


def decode_roots(
    program: CompiledJob,
    task: str,
    generation: int,
    decode: Callable[[bytes], Segment],
    roots: Ids,
    raws: Sequence[bytes],
) -> DecodedRoots:
    """Make segments of what an input has; what is none is rejected."""
    segments, raised = map_function(decode, raws)
    odd = {place: str(error) for place, error in raised.items()}
    drop_tracebacks(*raised.values())
    kept: list[bytes] | None = None
    # Other formats than MsgPack have numbers, or whatever else, that rows cannot carry.
    if program.is_multi_stage and decode is not decode_segment:
        kept, unkept = map_function(encode_segment, segments)
        odd |= dict.fromkeys(unkept, "it cannot go from one stage to the next")
        drop_tracebacks(*unkept.values())
    if not odd:
        return DecodedRoots(generation, roots, raws, segments, [], decode, kept=kept)
    rejected = [
        reject_undecodable(
            int(roots[place]), task, generation, UndecodableRecord(raws[place], reason), now_ms()
        )
        for place, reason in odd.items()
    ]
    good = [place for place in range(len(raws)) if place not in odd]
    return DecodedRoots(
        generation,
        roots[good],
        [raws[place] for place in good],
        [segments[place] for place in good],
        rejected,
        decode,
    )


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
