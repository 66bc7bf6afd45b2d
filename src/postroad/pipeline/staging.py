"""What a batch in plain Python writes, staged."""

from __future__ import annotations

from urllib.parse import quote

from .batch import PlainBatchExecutor
from .media.medium import OutputConnector, Committable, UnwritableSegmentsError

_SEPARATOR = "+"


def writer_id(job: str, part: str, task: str) -> str:
    """A name for what a part of a batch writes to an output; good for a file."""
    return writer_id_prefix(job, task) + part


def writer_id_prefix(job: str, task: str) -> str:
    """What such names of an output begin with, and those of no other output or job."""
    return f"{quote(job, safe='')}{_SEPARATOR}{quote(task, safe='')}{_SEPARATOR}"


def write_batch_output(output: OutputConnector, stage: str, task: str, batch: PlainBatchExecutor) -> Committable | None:
    """Stage what an output task can write; what it can never write has failed.

    Raises:
        OSError: it is not possible now, and nothing was staged.
    """
    stager = output.create_writer(stage)
    try:
        while True:
            try:
                ids, segments = batch.pending_output(task)
                if ids:
                    stager.write(ids, segments)
                return stager.prepare_commit()
            except UnwritableSegmentsError as error:
                batch.mark_unwritable(error.reasons)
    except BaseException:
        stager.abort()
        raise
