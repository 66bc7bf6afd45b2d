"""Windows whose contents Spark keeps: what batches add to them, and what comes back to be done.

A batch leaves files with what it adds; when it is committed they get the batch's number, and a
query of Spark takes them in that order. What it emits comes back in files, too, each of which is
delivered like a split of an input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from postroad.pipeline.connectors.connector import InputConnector, Position, RawRecords, Split
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.schema import has_tables

# The version of the schema that brought the tables.
_VERSION = 2


class WindowFile(msgspec.Struct, frozen=True):
    """What a part of a batch adds to a window."""

    window: str
    path: str
    latest_s: float
    counts: dict[int, int]
    """Segments of each extent, by the numbers of these."""


class CommittedDelta(msgspec.Struct, frozen=True):
    """What a batch adds to a window."""

    number: int
    paths: list[str]
    closed_before: int | None
    """Extents up to this number had ended: what is for them is too late."""
    closed: int
    """The same with this batch."""


class ResultFile(msgspec.Struct, frozen=True):
    """Segments that a window has emitted."""

    path: str
    segments: int


encode_results = msgspec.msgpack.Encoder().encode
"""The contents of such a file, from places and segments."""
_decode_results = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class ResultsInput(InputConnector):
    """Reads what windows have emitted, wherever that is to be done."""

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        return ()

    def read(self, place: Position) -> Iterator[RawRecords]:
        rows = _decode_results(Path(place["path"]).read_bytes())
        yield RawRecords("", [place for place, _ in rows], [segment for _, segment in rows])

    async def on_committed(self, places: Sequence[Position]) -> None:
        await asyncio.to_thread(remove_files, [place["path"] for place in places])


def remove_files(paths: Iterable[str]) -> None:
    """Remove files that nobody will read; blocks."""
    for path in paths:
        Path(path).unlink(missing_ok=True)


def read_dropped(pen: JobStore) -> dict[str, int]:
    """For each window that Spark keeps: how many segments it dropped because they were too late; a
    segment counts for each extent."""
    if not has_tables(pen.database, _VERSION):
        return {}
    rows = pen.database.execute(
        "SELECT name, dropped FROM postroad_pipeline_spark_windows WHERE job = ?", (pen.job,)
    )
    return {name: int(dropped) for name, dropped in rows}
