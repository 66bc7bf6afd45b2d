"""The disk of a simulated node: files survive restarts, unsynced changes may be lost."""

from __future__ import annotations

from random import Random

from postroad.core.errors import UsageError


class SimDisk:
    """Small files of one node; a crash may lose changes that were not synced.

    A crash keeps a random number of the first unsynced changes and drops the others: changes reach
    the disk in their order.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        # The files that the node sees, and those that survive a crash.
        self._files: dict[str, bytes] = {}
        self._synced: dict[str, bytes] = {}
        # Changes since the last sync, in order; None deletes.
        self._unsynced: list[tuple[str, bytes | None]] = []

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file."""
        if not isinstance(data, bytes):
            raise UsageError(f"cannot write {type(data).__name__} to a disk; write bytes")
        self._change(name, data)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        return self._files.get(name)

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        if name in self._files:
            self._change(name, None)

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(self._files)

    def sync(self) -> None:
        """Make all changes so far survive a crash."""
        self._synced = dict(self._files)
        self._unsynced.clear()

    def crash(self) -> int:
        """Drop a random part of the unsynced changes; return how many were dropped."""
        surviving = self._rng.randint(0, len(self._unsynced)) if self._unsynced else 0
        dropped = len(self._unsynced) - surviving
        for name, data in self._unsynced[:surviving]:
            _apply(self._synced, name, data)
        self._files = dict(self._synced)
        self._unsynced.clear()
        return dropped

    def _change(self, name: str, data: bytes | None) -> None:
        _apply(self._files, name, data)
        self._unsynced.append((name, data))

    def __repr__(self) -> str:
        return f"<SimDisk {len(self._files)} files, {len(self._unsynced)} changes not synced>"


def _apply(files: dict[str, bytes], name: str, data: bytes | None) -> None:
    if data is None:
        files.pop(name, None)
    else:
        files[name] = data
