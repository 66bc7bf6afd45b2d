"""What a simulated node keeps over restarts, with the honesty of a real disk."""

from __future__ import annotations

from random import Random

from postroad.core.errors import UsageError


class SimDisk:
    """Small files of one node. What was not synced when the node crashes may be lost.

    A crash keeps the unsynced changes up to some point, chosen by chance, and drops those after
    it: changes reach the disk in their order.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        # What the node sees, and what a crash cannot take away.
        self._files: dict[str, bytes] = {}
        self._synced: dict[str, bytes] = {}
        # Changes since the last sync, in order; None deletes.
        self._unsynced: list[tuple[str, bytes | None]] = []

    def write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole."""
        if not isinstance(data, bytes):
            raise UsageError(f"a disk keeps bytes, not {type(data).__name__}")
        self._change(name, data)

    def read(self, name: str) -> bytes | None:
        """What a file holds; None if there is none."""
        return self._files.get(name)

    def delete(self, name: str) -> None:
        """Remove a file, if there is one."""
        if name in self._files:
            self._change(name, None)

    def names(self) -> list[str]:
        """All files, in the order of their names."""
        return sorted(self._files)

    def sync(self) -> None:
        """Make sure that everything so far survives."""
        self._synced = dict(self._files)
        self._unsynced.clear()

    def crash(self) -> int:
        """Drop what chance takes of the unsynced changes; returns how many were dropped."""
        kept_count = self._rng.randint(0, len(self._unsynced)) if self._unsynced else 0
        dropped = len(self._unsynced) - kept_count
        for name, data in self._unsynced[:kept_count]:
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
