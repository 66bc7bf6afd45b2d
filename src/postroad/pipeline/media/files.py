"""Files of JSON lines, one segment a line."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from postroad.core.errors import ConfigError

from .medium import InputMedium, Item, OutputMedium, Place, Slice, Undecodable, Unwritable, Written

_SLICE_BYTES = 4 * 1024 * 1024
_LINE_BYTES_MAX = 16 * 1024 * 1024

_decode = msgspec.json.Decoder(dict).decode
_encode = msgspec.json.Encoder().encode


class LinesInput(InputMedium):
    """Reads files in the order of their names, cut at line ends.

    Args:
        path: of a file, or a pattern such as `in/*.jsonl`.
        slice_bytes: about how long a slice is.
    """

    def __init__(self, path: str, slice_bytes: int = _SLICE_BYTES) -> None:
        self._path = path
        self._slice_bytes = slice_bytes

    async def open(self) -> None:
        if not self._files():
            raise ConfigError(f"there is no file {self._path!r}")

    def _files(self) -> list[str]:
        return sorted(glob.glob(self._path, recursive=True))

    async def cut(self, after: Place | None, segments: int) -> Sequence[Slice]:
        return await asyncio.to_thread(self._cut, after or {"file": "", "start": 0}, segments)

    def _cut(self, after: Place, segments: int) -> list[Slice]:
        slices: list[Slice] = []
        for name in self._files():
            if name < after["file"] or segments <= 0:
                continue
            start = after["start"] if name == after["file"] else 0
            with open(name, "rb") as file:
                while segments > 0 and (found := self._cut_file(file, name, start, segments)):
                    slices.append(found)
                    segments -= found.count
                    start = found.end["start"]
        return slices

    def _cut_file(self, file: BinaryIO, name: str, start: int, segments: int) -> Slice | None:
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
        return Slice(
            {"file": name, "start": start, "stop": stop}, count, {"file": name, "start": stop}
        )

    def read(self, place: Place) -> Iterator[Item]:
        name, at = place["file"], place["start"]
        with open(name, "rb") as file:
            file.seek(at)
            while at < place["stop"]:
                line = file.readline(_LINE_BYTES_MAX)
                if not line:
                    raise EOFError(f"{name} became shorter while it was read")
                if line.strip():
                    yield Item(f"{name}:{at}", _to_segment(line))
                at += len(line)


def _to_segment(line: bytes) -> dict[str, object] | Undecodable:
    try:
        segment: dict[str, object] = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Undecodable(line.rstrip(b"\r\n"), str(error))
    return segment


def _to_lines(written: Sequence[Written]) -> list[bytes]:
    lines, reasons = [], {}
    for it in written:
        try:
            lines.append(_encode(it.segment) + b"\n")
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            reasons[it.id] = str(error)
    if reasons:
        raise Unwritable(reasons)
    return lines


def _sync(directory: Path) -> None:
    """Make new names in a directory last."""
    opened = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class LinesOutput(OutputMedium):
    """Writes files of JSON lines into a directory, one for each batch and partition.

    A file appears whole or not at all.
    """

    def __init__(self, path: str) -> None:
        self._directory = Path(path)

    async def open(self) -> None:
        (self._directory / "_staging").mkdir(parents=True, exist_ok=True)

    def stage(self, stage: str, written: Sequence[Written]) -> Place | None:
        if not written:
            return None
        lines = _to_lines(written)
        place = {"file": f"{stage}.jsonl"}
        temporary = self._directory / "_staging" / f"{place['file']}.{os.getpid()}"
        with temporary.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._directory / "_staging" / place["file"])
        _sync(self._directory / "_staging")
        return place

    async def publish(self, places: Sequence[Place]) -> None:
        for place in places:
            staged = self._directory / "_staging" / place["file"]
            # Otherwise it was published before.
            if staged.exists():
                staged.replace(self._directory / place["file"])
        _sync(self._directory)

    async def discard(self, places: Sequence[Place]) -> None:
        for place in places:
            (self._directory / "_staging" / place["file"]).unlink(missing_ok=True)
