"""Notices that files were saved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SUFFIXES = (".py", ".toml")
FILES_MAX = 2_000
"""A directory with more is no project, but somebody's home."""

_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages"})

Snapshot = Mapping[Path, tuple[int, int]]


def take_snapshot(directory: Path, more: Sequence[Path] = ()) -> Snapshot:
    """Times and sizes of the sources below a directory, and of some files besides."""
    found = {}
    for path in (*_sources(directory), *more):
        try:
            status = path.stat()
        except OSError:
            # Editors replace files, and for a moment there is none.
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _sources(directory: Path) -> Iterator[Path]:
    count = 0
    for place, directories, files in os.walk(directory):
        directories[:] = [it for it in directories if _is_looked_into(Path(place, it))]
        for name in files:
            if name.endswith(SUFFIXES):
                yield Path(place, name)
                count += 1
                if count >= FILES_MAX:
                    return


def _is_looked_into(directory: Path) -> bool:
    name = directory.name
    is_environment = (directory / "pyvenv.cfg").exists()
    return not (name.startswith(".") or name in _SKIPPED or is_environment)


def changed(before: Snapshot, after: Snapshot) -> list[Path]:
    """Files that were saved, added or removed."""
    return sorted(it for it in before.keys() | after.keys() if before.get(it) != after.get(it))
