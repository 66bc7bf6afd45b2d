"""Lists in memory, for tests and for trying things out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    OutputConnector,
    OutputWriter,
    Position,
    RawRecords,
    Split,
    decode_segment,
    encode_segment,
)
from postroad.pipeline.connectors.encoding import UNENCODABLE, InlineWriter, unpack
from postroad.pipeline.connectors.options import accept_old_names
from postroad.pipeline.job import Segment


class MemoryInput(InputConnector):
    """Reads a list of segments; raises ConfigError if MsgPack cannot encode one of them."""

    is_portable = False

    @accept_old_names(slice_segments="split_segments")
    def __init__(self, segments: Iterable[Segment], split_segments: int = 100) -> None:
        self._raws: list[bytes] = []
        self._split_segments = split_segments
        for segment in segments:
            try:
                self._raws.append(encode_segment(segment))
            except UNENCODABLE as error:
                raise ConfigError(f"segment {len(self._raws)} cannot be encoded: {error}") from None

    def __getstate__(self) -> dict[str, object]:
        # It is read where it is; others only decode.
        return self.__dict__ | {"_raws": []}

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        start = 0 if after is None else int(after["index"])
        stop = min(start + segments, len(self._raws))
        size = min(self._split_segments, self.split_segments_max)
        return [_slice(first, min(first + size, stop)) for first in range(start, stop, size)]

    def read(self, place: Position) -> Iterator[RawRecords]:
        start, stop = place["start"], place["stop"]
        yield RawRecords("", range(start, stop), self._raws[start:stop])


def _slice(start: int, stop: int) -> Split:
    return Split({"start": start, "stop": stop}, stop - start, {"index": stop})


class MemoryOutput(OutputConnector):
    """Keeps what is published, in order; `segments` has it."""

    def __init__(self) -> None:
        self._published: dict[int, Segment] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_published": {}}

    def create_writer(self, stage: str) -> OutputWriter:
        return InlineWriter()

    async def commit(self, staged: Committable) -> None:
        for id, packed in unpack(staged):
            self._published[id] = decode_segment(packed)

    @property
    def segments(self) -> list[Segment]:
        """What is published."""
        return list(self._published.values())
