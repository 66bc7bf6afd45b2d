"""Stands for Spark's own readers and writers: Spark itself carries what they read and write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from postroad.core.errors import UsageError
from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    OutputConnector,
    OutputWriter,
    Position,
    RawRecords,
    Split,
)


class SparkInput(InputConnector):
    """An input that one of Spark's readers reads.

    Args:
        format: a format that Spark knows: `json`, `parquet`, `csv`, `text`, `kafka`, `jdbc`, ...
        continuous: whether the job goes on for ever, taking what arrives; otherwise it ends when
            everything that was there is done.
        streaming: whether Spark reads it as a stream; otherwise a job takes it whole, once.
        options: those of Spark's reader, `path` among them.
    """

    def __init__(
        self, format: str, continuous: bool = False, streaming: bool = True, **options: Any
    ) -> None:
        self.is_bounded = not continuous
        self.is_streaming = streaming

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        return ()

    def read(self, place: Position) -> Iterator[RawRecords]:
        raise UsageError("Spark reads this input: run the job on Spark")


class SparkOutput(OutputConnector):
    """An output that one of Spark's writers writes.

    Args:
        format: a format that Spark knows.
        options: those of Spark's writer, `path` among them, and `partition_by`, a list of columns.
    """

    is_external = True

    def __init__(self, format: str, **options: Any) -> None:
        self.format = format

    def create_writer(self, stage: str) -> OutputWriter:
        raise UsageError("Spark writes this output: run the job on Spark")

    async def abort(self, staged: Committable) -> None:
        return
