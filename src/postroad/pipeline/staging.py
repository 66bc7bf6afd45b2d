"""What a batch in plain Python writes, staged."""

from __future__ import annotations

from urllib.parse import quote

from .batch import Batch
from .media.medium import OutputMedium, Staged, Unwritable

_SEPARATOR = "+"


def stage_name(job: str, part: str, task: str) -> str:
    """A name for what a part of a batch writes to an output; good for a file."""
    return stage_prefix(job, task) + part


def stage_prefix(job: str, task: str) -> str:
    """What such names of an output begin with, and those of no other output or job."""
    return f"{quote(job, safe='')}{_SEPARATOR}{quote(task, safe='')}{_SEPARATOR}"


def stage_all(output: OutputMedium, stage: str, task: str, batch: Batch) -> Staged | None:
    """Stage what an output task can write; what it can never write has failed.

    Raises:
        OSError: it is not possible now, and nothing was staged.
    """
    stager = output.begin(stage)
    try:
        while True:
            try:
                ids, segments = batch.written(task)
                if ids:
                    stager.write(ids, segments)
                return stager.finish()
            except Unwritable as error:
                batch.refuse(error.reasons)
    except BaseException:
        stager.abandon()
        raise
