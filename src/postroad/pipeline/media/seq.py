"""Lists in memory, for tests and for trying things out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from postroad.pipeline.job import Segment

from .medium import InputMedium, Item, OutputMedium, Place, Slice, Written


class SeqInput(InputMedium):
    """Gives the segments of a list, each by its place in it."""

    def __init__(self, segments: Iterable[Segment], slice_segments: int = 100) -> None:
        self._segments = list(segments)
        self._slice_segments = slice_segments

    async def cut(self, after: Place | None, segments: int) -> Sequence[Slice]:
        start = 0 if after is None else int(after["index"])
        stop = min(start + segments, len(self._segments))
        bounds = range(start, stop, self._slice_segments)
        return [_slice(first, min(first + self._slice_segments, stop)) for first in bounds]

    def read(self, place: Place) -> Iterator[Item]:
        for index in range(place["start"], place["stop"]):
            # A copy, because functions may change what they are given.
            yield Item(str(index), dict(self._segments[index]))


def _slice(start: int, stop: int) -> Slice:
    return Slice({"start": start, "stop": stop}, stop - start, {"index": stop})


class SeqOutput(OutputMedium):
    """Keeps what is published, in order; `segments` has it."""

    def __init__(self) -> None:
        self._staged: dict[str, list[Written]] = {}
        self._published: dict[int, Segment] = {}

    def stage(self, stage: str, written: Sequence[Written]) -> Place | None:
        self._staged[stage] = list(written)
        return {"stage": stage}

    async def publish(self, places: Sequence[Place]) -> None:
        for place in places:
            for it in self._staged.pop(place["stage"], ()):
                self._published[it.id] = it.segment

    async def discard(self, places: Sequence[Place]) -> None:
        for place in places:
            self._staged.pop(place["stage"], None)

    @property
    def segments(self) -> list[Segment]:
        """What is published."""
        return list(self._published.values())
