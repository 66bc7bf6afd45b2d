"""The files of an input, and how far each of them was read."""

from __future__ import annotations

import asyncio
import glob
import logging
import os
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.pipeline.connectors.connector import InputConnector, Position, Split

logger = logging.getLogger("postroad.pipeline")

# A file that was not changed for so long is not being written.
_OLD_AFTER_S = 60.0
# Where nothing is new: to list many files takes long, and is not done all the time.
_LISTING_SHARE = 0.2


class FileSet:
    """The files of a path or pattern, the same in whatever directory a process runs.

    Their names are as the path has them, relative if it is: positions have them, and ids of
    segments follow from them.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._base = "" if os.path.isabs(path) else os.getcwd()

    def names(self) -> list[str]:
        """What there is now, in order."""
        return sorted(glob.glob(self._path, root_dir=self._base, recursive=True))

    def check(self) -> list[str]:
        """The same; raises ConfigError if that is nothing."""
        names = self.names()
        if not names:
            where = self._base and f" in {self._base}"
            raise ConfigError(f"there is no file {self._path!r}{where}")
        return names

    def locate(self, name: str) -> str:
        """Where to open the file of a name."""
        return os.path.join(self._base, name)


class FileProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a file was read, and what it was like then."""

    next: int
    """The first byte or row that was not read."""
    size: int = -1
    mtime_ns: int = -1
    is_done: bool = False
    """Whether there is nothing more to read as long as it stays as it is."""

    def is_of(self, status: os.stat_result) -> bool:
        """Whether the file is still the same."""
        return (self.size, self.mtime_ns) == (status.st_size, status.st_mtime_ns)


class _Offer(NamedTuple):
    number: int
    name: str
    before: FileProgress | None


class FileCatalog:
    """Remembers each file that was read, whatever its name, and finds those that are new.

    Its state is recorded with the splits: each has a number, and the progress of its file. Splits
    that were not recorded are planned again.
    """

    def __init__(self, files: FileSet, is_growing: bool) -> None:
        self._files = files
        self._is_growing = is_growing
        self._progress: dict[str, FileProgress] = {}
        self._offers: deque[_Offer] = deque()
        # The numbers of the last split, and of the last one that is known to be recorded.
        self._last = self._recorded = 0
        # Files of the last listing that are still to be looked at.
        self._backlog: deque[str] = deque()
        self._next_listing_s = 0.0
        # When a file was first seen to have the size it has, by the clock of this process.
        self._sizes: dict[str, tuple[int, float]] = {}
        # What is recorded with the next split, besides its own file.
        self._unrecorded: dict[str, Any] = {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what an earlier process recorded."""
        self._progress = {
            name: msgspec.convert(progress, FileProgress) for name, progress in state.items()
        }
        self._last = -1
        self._forget_listing()

    def _forget_listing(self, keep_offers: bool = False) -> None:
        if not keep_offers:
            self._offers.clear()
        self._backlog.clear()
        self._next_listing_s = 0.0

    def go_to(self, after: Position | None) -> None:
        """Forget what was planned behind a position: it was not recorded."""
        if after is not None and "split" not in after:
            self._take_over(after)
            return
        number = 0 if after is None else int(after["split"])
        if self._last == -1:
            self._last = self._recorded = number
        if not (number == 0 or self._recorded <= number <= self._last):
            raise UsageError(
                f"position {number} is unknown to this input; call restore() with its state first"
            )
        if number < self._last:
            self._undo(number)
        # What was recorded is never taken back.
        while self._offers and self._offers[0].number <= number:
            self._offers.popleft()
        self._recorded = number

    def _undo(self, number: int) -> None:
        if number == 0:
            self._progress.clear()
        while number and self._offers and self._offers[-1].number > number:
            _, name, before = self._offers.pop()
            if before is None:
                self._progress.pop(name, None)
            else:
                self._progress[name] = before
        self._last = number
        self._forget_listing(keep_offers=number > 0)

    def _take_over(self, after: Position) -> None:
        """Go on from a position of version 0.1, which had the name of the last file only."""
        self._last, self._recorded, self._progress = 0, 0, {}
        for name in self._files.names():
            if name > after["file"]:
                break
            status = os.stat(self._files.locate(name))
            is_last = name == after["file"]
            done = status.st_size if self._is_growing else 0
            offset = int(after["start" if self._is_growing else "row"]) if is_last else done
            progress = FileProgress(offset, status.st_size, status.st_mtime_ns, not is_last)
            self._progress[name] = progress
            self._unrecorded[name] = msgspec.to_builtins(progress)
        self._forget_listing()

    def unread(self) -> Iterator[tuple[str, int]]:
        """Files with something new, in the order of their names, and where that begins."""
        if not self._backlog:
            self._list()
        while self._backlog:
            name = self._backlog[0]
            progress = self._progress.get(name)
            # It stays in the backlog if the caller has enough.
            yield name, 0 if progress is None else progress.next
            self._backlog.popleft()

    def finish(self, name: str, progress: FileProgress) -> None:
        """There is nothing more in a file now."""
        self._progress[name] = progress

    def _list(self) -> None:
        started_s = time.monotonic()
        if started_s < self._next_listing_s:
            return
        for name in self._files.names():
            try:
                status = os.stat(self._files.locate(name))
            except FileNotFoundError:
                continue
            progress = self._progress.get(name)
            if progress is None or not progress.is_done:
                self._backlog.append(name)
            elif not progress.is_of(status):
                self._look_at_change(name, progress, status)
        ended_s = time.monotonic()
        if not self._backlog:
            self._next_listing_s = ended_s + (ended_s - started_s) / _LISTING_SHARE

    def _look_at_change(self, name: str, progress: FileProgress, status: os.stat_result) -> None:
        if self._is_growing and status.st_size > progress.next:
            self._backlog.append(name)
            return
        change = "became shorter" if status.st_size < progress.size else "was changed"
        logger.warning(
            "%s %s after it was read: the change is ignored; write new data to a new file",
            name,
            change,
        )
        size, mtime_ns = status.st_size, status.st_mtime_ns
        self._progress[name] = msgspec.structs.replace(progress, size=size, mtime_ns=mtime_ns)

    def settles_in_s(self, name: str, status: os.stat_result, settle_s: float) -> float:
        """How much longer to wait until a file that does not grow is taken to be complete."""
        if time.time() - status.st_mtime > max(settle_s, _OLD_AFTER_S):
            return 0.0
        now_s = time.monotonic()
        size, since_s = self._sizes.get(name, (-1, now_s))
        if size != status.st_size:
            since_s = now_s
        self._sizes[name] = status.st_size, since_s
        return max(since_s + settle_s - now_s, 0.0)

    def offer(self, name: str, progress: FileProgress) -> tuple[Position, dict[str, Any]]:
        """A file is read up to some place by the next split; returns what is recorded with it."""
        self._last += 1
        self._offers.append(_Offer(self._last, name, self._progress.get(name)))
        self._progress[name] = progress
        self._sizes.pop(name, None)
        recorded, self._unrecorded = self._unrecorded, {}
        return {"split": self._last}, {**recorded, name: msgspec.to_builtins(progress)}


class FileInput(InputConnector):
    """Reads files, new ones in the order of their names; they may grow at their end, or not."""

    def __init__(self, path: str, is_growing: bool) -> None:
        self._files = FileSet(path)
        self._is_growing = is_growing
        self._catalog = FileCatalog(self._files, is_growing)

    def __getstate__(self) -> dict[str, Any]:
        # Other processes only read.
        return {**self.__dict__, "_catalog": FileCatalog(self._files, self._is_growing)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._catalog.restore(state)

    async def open(self, uncommitted: Sequence[Position]) -> None:
        await asyncio.to_thread(self._check, self._files.check()[0])

    def _check(self, first: str) -> None:
        """Raise ConfigError if the first file cannot be read as it should."""
        return

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        return await asyncio.to_thread(self._plan, after, segments)

    def _plan(self, after: Position | None, segments: int) -> list[Split]:
        splits: list[Split] = []
        self._catalog.go_to(after)
        for name, start in self._catalog.unread():
            if segments <= 0:
                break
            with suppress(FileNotFoundError):
                for split in self._plan_file(name, start, segments):
                    splits.append(split)
                    segments -= split.estimated_segments
        return splits

    @abstractmethod
    def _plan_file(self, name: str, start: int, segments: int) -> Iterable[Split]:
        """The splits of a file from a byte or row on, for so many segments."""
