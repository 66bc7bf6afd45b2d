"""What a batch in plain Python writes, staged."""

from __future__ import annotations

from .batch import Batch
from .media.medium import OutputMedium, Staged, Unwritable


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
