"""Staging for outputs that are written at the coordinator: what is staged goes there as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from postroad.pipeline.connectors.connector import (
    Committable,
    OutputWriter,
    UnwritableSegmentsError,
    encode_segment,
)
from postroad.pipeline.job import Segment

UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""What encoders raise of what they cannot encode."""


class InlineWriter(OutputWriter):
    """Encodes segments and keeps them."""

    def __init__(self, encode: Callable[[Segment], bytes] = encode_segment) -> None:
        self._encode = encode
        self._ids: list[int] = []
        self._packed: list[bytes] = []

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self._packed += encode_all(self._encode, ids, segments)
        self._ids += ids

    def prepare_commit(self) -> Committable | None:
        return {"ids": self._ids, "packed": self._packed} if self._ids else None

    def abort(self) -> None:
        self._ids, self._packed = [], []


def unpack(staged: Committable) -> Iterator[tuple[int, bytes]]:
    """The ids and encoded segments of what was staged."""
    return zip(staged["ids"], staged["packed"], strict=True)


def encode_all(
    encode: Callable[[Segment], bytes], ids: Sequence[int], segments: Sequence[Segment]
) -> list[bytes]:
    """Encode all segments; raises UnwritableSegmentsError if some cannot be encoded."""
    try:
        return list(map(encode, segments))
    except UNENCODABLE:
        raise UnwritableSegmentsError(_find_reasons(encode, ids, segments)) from None


def _find_reasons(
    encode: Callable[[Segment], bytes], ids: Sequence[int], segments: Sequence[Segment]
) -> dict[int, str]:
    reasons = {}
    for id, segment in zip(ids, segments, strict=True):
        try:
            encode(segment)
        except UNENCODABLE as error:
            reasons[id] = str(error)
    return reasons
