"""Outputs that are directories of files: a file for each part of a batch, whole or not at all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from .medium import OutputMedium, Staged

_STAGING = "_staging"


class DirectoryOutput(OutputMedium):
    """What such outputs have in common: files are staged aside and moved when they are settled.

    Args:
        path: the directory; on a cluster every machine must have it.
    """

    def __init__(self, path: str) -> None:
        self._directory = Path(path)

    async def open(self, prefix: str, unpublished: Sequence[Staged]) -> None:
        await asyncio.to_thread(self._open, prefix, {it["file"] for it in unpublished})

    def _open(self, prefix: str, wanted: set[str]) -> None:
        for path in self.staging_path("").iterdir():
            if path.name.startswith(prefix) and path.name not in wanted:
                path.unlink(missing_ok=True)

    def staging_path(self, name: str) -> Path:
        """Where a file is written, on this machine or another."""
        staging = self._directory / _STAGING
        staging.mkdir(parents=True, exist_ok=True)
        return staging / name

    async def publish(self, staged: Staged) -> None:
        await asyncio.to_thread(self._publish, staged["file"])

    def _publish(self, name: str) -> None:
        path = self.staging_path(name)
        # Otherwise it was published before.
        if path.exists():
            path.replace(self._directory / name)
            sync_directory(self._directory)

    async def discard(self, staged: Staged) -> None:
        self.staging_path(staged["file"]).unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make new names in a directory last."""
    opened = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
