"""Directories of files that outputs write whole or not at all."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from postroad.pipeline.connectors.connector import Committable, OutputConnector, OutputWriter

_STAGING = "_staging"
_PUBLISHED = "_published"
_WRITE_BYTES = 1024 * 1024


class DirectoryOutput(OutputConnector):
    """What such outputs have in common: files are staged aside and moved when they are committed.

    A file that is not staged any more may have been published before a crash, and whoever reads
    the directory may have taken it away since. Or it never was where it should be, or was lost.
    To tell, a mark is made before a file is moved: without one, a file that is neither staged nor
    published cannot be published, which is complained about until it turns up. If it is gone for
    good, a file of its name in the directory, with whatever in it, ends that.

    Args:
        path: the directory; on a cluster every machine must have it.
    """

    def __init__(self, path: str) -> None:
        self._directory = Path(path).absolute()
        self._last_published: str | None = None

    async def open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        await asyncio.to_thread(self._open, prefix, [staged["file"] for staged in unpublished])

    def _open(self, prefix: str, wanted: Sequence[str]) -> None:
        _clear(self.staging_path(""), prefix, set(wanted))
        mark = self._mark_of(prefix)
        _clear(mark.parent, mark.name, {self._mark_of(name).name for name in wanted})

    def staging_path(self, name: str) -> Path:
        """Where a file is written, on this machine or another."""
        return _in_directory(self._directory / _STAGING, name)

    def _mark_of(self, name: str) -> Path:
        # Readers of directories take nothing whose name begins so.
        return _in_directory(self._directory / _PUBLISHED, f"_{name}")

    async def commit(self, staged: Committable) -> None:
        await asyncio.to_thread(self._publish, staged["file"])

    def _publish(self, name: str) -> None:
        staged, published = self.staging_path(name), self._directory / name
        mark = self._mark_of(name)
        if staged.exists():
            self._move(staged, published, mark)
        elif not (published.exists() or mark.exists()):
            raise OSError(
                f"{staged} is missing, and was not committed;"
                f" do all machines have the same {self._directory}?"
            )
        # Also what was moved by a process that did not come so far.
        sync_directory(self._directory)
        self._forget_last(name)

    def _move(self, staged: Path, published: Path, mark: Path) -> None:
        mark.touch()
        sync_directory(mark.parent)
        try:
            staged.replace(published)
        except OSError:
            mark.unlink(missing_ok=True)
            raise

    def _forget_last(self, name: str) -> None:
        """The store forgets what was published before the next is, so one mark is enough."""
        last, self._last_published = self._last_published, name
        if last is not None and last != name:
            self._mark_of(last).unlink(missing_ok=True)

    async def remove_abandoned(
        self, prefix: str, kept: Sequence[Committable], before_s: float
    ) -> None:
        names = {staged["file"] for staged in kept}
        await asyncio.to_thread(_clear, self.staging_path(""), prefix, names, before_s)

    async def abort(self, staged: Committable) -> None:
        self.staging_path(staged["file"]).unlink(missing_ok=True)


class FileWriter(OutputWriter):
    """Writes one file, and opens it late: most writers of a batch get nothing for some outputs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._file = self._path.open("wb", buffering=_WRITE_BYTES)
        return self._file

    def _finish(self) -> None:
        """Write what is not written yet."""
        return

    def prepare_commit(self) -> Committable | None:
        self._finish()
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


def _in_directory(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory / name


def _clear(directory: Path, prefix: str, wanted: set[str], before_s: float = math.inf) -> None:
    for path in directory.iterdir():
        if path.name.startswith(prefix) and path.name not in wanted:
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before_s:
                    path.unlink()


def sync_directory(directory: Path) -> None:
    """Make new names in a directory last."""
    opened = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
