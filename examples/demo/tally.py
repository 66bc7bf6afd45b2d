"""A counter in a mapped file: what was counted stays counted when the process is killed."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path


class Tally:
    """The counter, as the process that counts has it."""

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._count = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")

    @staticmethod
    def create(path: Path) -> None:
        """Make the file of a new tally."""
        path.write_bytes(bytes(8))

    @staticmethod
    def read(path: Path) -> int:
        """The count, also while or after a process adds to it."""
        return int.from_bytes(path.read_bytes(), sys.byteorder)

    def add(self) -> None:
        """Count one."""
        self._count[0] += 1
