"""Files of JSON lines, one segment a line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, compress
from typing import Any, BinaryIO

import msgspec

from postroad.pipeline.connectors.connector import (
    OutputWriter,
    Position,
    RawRecords,
    Split,
)
from postroad.pipeline.connectors.encoding import encode_all
from postroad.pipeline.connectors.files.catalog import FileInput, FileProgress
from postroad.pipeline.connectors.files.directory import DirectoryOutput, FileWriter
from postroad.pipeline.connectors.options import accept_old_names, check_positive, check_seconds
from postroad.pipeline.job import Segment

SPLIT_BYTES = 4 * 1024 * 1024
SETTLE_S = 1.0
_LINE_BYTES_MAX = 16 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Segment] = msgspec.json.Decoder(dict[str, Any]).decode


class JsonLinesInput(FileInput):
    """Reads files, new ones in the order of their names, cut at line ends.

    Files may grow, and new ones may have any name. A last line without a line end is read when its
    file did not grow for a while.

    Args:
        path: of a file, or a pattern such as `in/*.jsonl`; on a cluster every machine must have it.
        split_bytes: about how long a split is.
        settle_s: how long a file must not grow until a last line without a line end is read.
    """

    @accept_old_names(slice_bytes="split_bytes")
    def __init__(
        self,
        path: str,
        split_bytes: int = SPLIT_BYTES,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__(path, is_growing=True)
        self._split_bytes = check_positive("split_bytes", split_bytes)
        self._settle_s = check_seconds("settle_s", settle_s)
        # How much longer to wait for the last line of a file.
        self._settles_in_s: float | None = None

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        while True:
            self._settles_in_s = None
            splits = await super().plan_splits(after, segments)
            if splits or self._settles_in_s is None or not self.is_bounded:
                return splits
            # Whoever reads what is there now must not miss a last line.
            await asyncio.sleep(self._settles_in_s)

    def _open_file(self, name: str) -> BinaryIO:
        return open(self._files.locate(name), "rb")

    def _plan_file(self, name: str, start: int, segments: int) -> Iterator[Split]:
        with self._open_file(name) as file:
            yield from self._plan_opened(file, name, start, segments)

    def _plan_opened(self, file: BinaryIO, name: str, start: int, segments: int) -> Iterator[Split]:
        while segments > 0:
            start = self._find_start(file, name, start)
            if start < 0:
                return
            some = min(segments, self.split_segments_max)
            stop, count, is_end = self._measure(file, name, start, some)
            status = os.fstat(file.fileno())
            progress = FileProgress(stop, status.st_size, status.st_mtime_ns, is_end)
            if count:
                position, state = self._catalog.offer(name, progress)
                place = {"file": name, "start": start, "stop": stop}
                yield Split(place, count, position, state)
            elif is_end:
                self._catalog.finish(name, progress)
            if is_end or not count:
                return
            start, segments = stop, segments - count

    def _find_start(self, file: BinaryIO, name: str, start: int) -> int:
        """Where the next record begins; -1 if that is not known yet."""
        return start

    def _measure(
        self, file: BinaryIO, name: str, start: int, segments: int
    ) -> tuple[int, int, bool]:
        """Where a split of a file ends, how many records it has, and whether nothing follows."""
        file.seek(start)
        stop, count = start, 0
        while count < segments and (stop - start < self._split_bytes or not count):
            record = self._read_record(file)
            if not record:
                return stop, count, True
            if not (self._is_complete(record) or self._is_settled(file, name)):
                return stop, count, False
            stop += len(record)
            count += bool(record.strip())
        return stop, count, False

    def _is_complete(self, record: bytes) -> bool:
        """Whether more of a record cannot follow."""
        return record.endswith(b"\n") or len(record) >= _LINE_BYTES_MAX

    def _is_settled(self, file: BinaryIO, name: str) -> bool:
        """Whether the file does not grow, so that an incomplete record is all there is."""
        status = os.fstat(file.fileno())
        wait_s = self._catalog.settles_in_s(name, status, self._settle_s)
        if wait_s > 0:
            self._settles_in_s = min(wait_s, self._settles_in_s or wait_s)
        return wait_s <= 0

    def _read_record(self, file: BinaryIO) -> bytes:
        """The next record, whatever is in it; nothing at the end of the file."""
        return file.readline(_LINE_BYTES_MAX)

    def read(self, place: Position) -> Iterator[RawRecords]:
        name, start, stop = place["file"], place["start"], place["stop"]
        with self._open_file(name) as file:
            file.seek(start)
            data = file.read(stop - start)
        if len(data) < stop - start:
            raise OSError(f"{name} became shorter while it was read")
        lines = data.split(b"\n")
        starts = accumulate((len(line) + 1 for line in lines[:-1]), initial=start)
        # What follows the last line end, and lines with nothing in them.
        filled = [bool(line.strip()) for line in lines]
        yield RawRecords(name, list(compress(starts, filled)), list(compress(lines, filled)))

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        return _decode


class JsonLinesOutput(DirectoryOutput):
    """Writes files of JSON lines into a directory, one for each part of a batch."""

    def create_writer(self, stage: str) -> OutputWriter:
        return _JsonLinesWriter(self.staging_path(f"{stage}.jsonl"))


class _JsonLinesWriter(FileWriter):
    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        lines = encode_all(_encode, ids, segments)
        lines.append(b"")
        self._open().write(b"\n".join(lines))
