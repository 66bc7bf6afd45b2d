"""Files of JSON lines, one segment a line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    OutputWriter,
    Position,
    RawRecords,
    Split,
)
from postroad.pipeline.connectors.encoding import encode_all
from postroad.pipeline.connectors.files.directory import DirectoryOutput, FileSet, sync_directory
from postroad.pipeline.job import Segment

_SLICE_BYTES = 4 * 1024 * 1024
_LINE_BYTES_MAX = 16 * 1024 * 1024
_WRITE_BYTES = 1024 * 1024

_encode = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Segment] = msgspec.json.Decoder(dict[str, Any]).decode


class JsonLinesInput(InputConnector):
    """Reads files in the order of their names, cut at line ends.

    Args:
        path: of a file, or a pattern such as `in/*.jsonl`; on a cluster every machine must have it.
        slice_bytes: about how long a slice is.
    """

    def __init__(self, path: str, slice_bytes: int = _SLICE_BYTES) -> None:
        self._files = FileSet(path)
        self._slice_bytes = slice_bytes

    async def open(self, unsettled: Sequence[Position]) -> None:
        self._files.check()

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        return await asyncio.to_thread(self._cut, after or {"file": "", "start": 0}, segments)

    def _cut(self, after: Position, segments: int) -> list[Split]:
        slices: list[Split] = []
        for name in self._files.names():
            if name < after["file"] or segments <= 0:
                continue
            start = after["start"] if name == after["file"] else 0
            with self._open_file(name) as file:
                while segments > 0 and (found := self._cut_file(file, name, start, segments)):
                    slices.append(found)
                    segments -= found.estimated_segments
                    start = found.next_position["start"]
        return slices

    def _open_file(self, name: str) -> BinaryIO:
        return open(self._files.locate(name), "rb")

    def _cut_file(self, file: BinaryIO, name: str, start: int, segments: int) -> Split | None:
        file.seek(start)
        count = length = 0
        while count < segments and length < self._slice_bytes:
            line = file.readline(_LINE_BYTES_MAX)
            if not line:
                break
            length += len(line)
            count += 1
        if not count:
            return None
        stop = start + length
        return Split(
            {"file": name, "start": start, "stop": stop}, count, {"file": name, "start": stop}
        )

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


class _JsonLinesWriter(OutputWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        lines = encode_all(_encode, ids, segments)
        if self._file is None:
            # Opened only now: most parts of a batch write nothing to some of its outputs.
            self._file = self._path.open("wb", buffering=_WRITE_BYTES)
        lines.append(b"")
        self._file.write(b"\n".join(lines))

    def prepare_commit(self) -> Committable | None:
        if self._file is None:
            return None
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._path.parent)
        return {"file": self._path.name}

    def abort(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
