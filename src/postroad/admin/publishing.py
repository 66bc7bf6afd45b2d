"""New files that appear whole or not at all, with their final permissions from the first byte.

Called by `certificates`. Invariant: without `force` no existing file is touched, also when two
processes publish the same names at once.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class NewFile(NamedTuple):
    """A file to be: where, what, and who may read it."""

    path: Path
    content: bytes
    mode: int


def publish(files: Sequence[NewFile], *, force: bool) -> None:
    """Put all files in place, or none of them.

    Raises:
        FileExistsError: a file exists and `force` is not given; nothing has changed.
        OSError: writing failed; without `force` nothing is left behind.
    """
    with ExitStack() as undo:
        if not force:
            for file in files:
                # An empty file holds the name, so two runs at once cannot mix their files.
                os.close(_open_new(file.path, file.mode))
                undo.callback(file.path.unlink, missing_ok=True)
        staged = []
        for file in files:
            temporary = file.path.with_name(f".{os.urandom(8).hex()}.tmp")
            undo.callback(temporary.unlink, missing_ok=True)
            _write_new(temporary, file)
            staged.append(temporary)
        for temporary, file in zip(staged, files, strict=True):
            temporary.replace(file.path)
        undo.pop_all()


def _write_new(temporary: Path, file: NewFile) -> None:
    with os.fdopen(_open_new(temporary, file.mode), "wb") as stream:
        stream.write(file.content)
        stream.flush()
        os.fsync(stream.fileno())


def _open_new(path: Path, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
