"""Notices that files were saved."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SUFFIXES = (".py", ".toml")
FILES_MAX = 2_000
"""A directory with more is no project, but somebody's home."""

_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages"})
# Whatever has one of these is a project of its own, or an environment.
_MARKS = (
    "pyproject.toml", "postroad.toml", "setup.py", ".git", "pyvenv.cfg", "conda-meta"
)  # fmt: skip
_FILE = "postroad.toml"
_DATA = ".postroad"

Snapshot = Mapping[Path, tuple[int, int]]


class Sources:
    """The files that a program is made of.

    Args:
        directory: where it is; what is below, except for other projects, belongs to it.
        more: files that belong to it wherever they are.
        not_in: directories that do not belong to it.
    """

    def __init__(
        self, directory: Path, more: Sequence[Path] = (), not_in: Sequence[Path] = ()
    ) -> None:
        self._directory = directory.resolve()
        self._more = [it.resolve() for it in more]
        self._not_in = {it.resolve() for it in not_in}

    def snapshot(self) -> Snapshot:
        """Times and sizes as they are now."""
        found = {}
        for path in (*self._sources(), *self._more):
            try:
                status = path.stat()
            except OSError:
                # Editors replace files, and for a moment there is none.
                continue
            found[path] = (status.st_mtime_ns, status.st_size)
        return found

    def _sources(self) -> Iterator[Path]:
        count = 0
        for place, directories, files in os.walk(self._directory):
            directories[:] = [it for it in directories if self._is_ours(Path(place, it))]
            for name in files:
                if name.endswith(SUFFIXES):
                    yield Path(place, name)
                    count += 1
                    if count >= FILES_MAX:
                        return

    def _is_ours(self, directory: Path) -> bool:
        name = directory.name
        if name.startswith(".") or name in _SKIPPED or directory in self._not_in:
            return False
        return not any((directory / it).exists() for it in _MARKS)


def find_configuration(given: Path | None) -> Path:
    """The file that a node reads, whether or not it is there; without all that a node imports."""
    named = os.environ.get("POSTROAD_CONFIG")
    return given or Path(named or _FILE)


def data_directory(configuration: Path, settings: Mapping[str, str]) -> Path:
    """Where a node keeps its files; if the configuration makes no sense, where it is by default."""
    given = settings.get("node.data") or os.environ.get("POSTROAD_NODE_DATA")
    if not given:
        try:
            read = tomllib.loads(configuration.read_text(encoding="utf-8-sig"))
            given = read["node"]["data"]
        except (OSError, ValueError, KeyError, TypeError):
            given = _DATA
    return Path(given if isinstance(given, str) else _DATA)


def changed(before: Snapshot, after: Snapshot) -> list[Path]:
    """Files that were saved, added or removed."""
    return sorted(it for it in before.keys() | after.keys() if before.get(it) != after.get(it))
