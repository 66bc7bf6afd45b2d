"""Whose checkpoint it is: Spark's own files do not tell."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from postroad.core.errors import ConfigError

_FILE = "postroad.json"
SPARK_FILES = "spark"
"""Where in it Spark keeps its own."""


class _CheckpointOwner(msgspec.Struct):
    job: str
    run: str


def open_checkpoint(path: Path, job: str) -> str:
    """Make a checkpoint's directory, or find it again; returns the name of its run.

    A run ends with the files that Spark has there: without them Spark counts from 0 again.

    Raises:
        ConfigError: it is another job's, or not ours at all.
    """
    path.mkdir(parents=True, exist_ok=True)
    file = path / _FILE
    if not file.exists():
        if any(path.iterdir()):
            raise ConfigError(f"{path} is no checkpoint of a job, and not empty")
        return _mark(file, job)
    try:
        mark = msgspec.json.decode(file.read_bytes(), type=_CheckpointOwner)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
    if mark.job != job:
        raise ConfigError(f"{path} is the checkpoint of the job {mark.job!r}, not of {job!r}")
    return mark.run if (path / SPARK_FILES).exists() else _mark(file, job)


def _mark(file: Path, job: str) -> str:
    run = secrets.token_hex(8)
    temporary = file.with_suffix(".new")
    with temporary.open("wb") as opened:
        opened.write(msgspec.json.encode(_CheckpointOwner(job, run)))
        opened.flush()
        os.fsync(opened.fileno())
    temporary.replace(file)
    return run
