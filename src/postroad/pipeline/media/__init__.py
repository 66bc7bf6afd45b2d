"""Where segments come from and where they go."""

from __future__ import annotations

from .comma_separated import CsvInput
from .files import files_input
from .jetstream import JetStreamInput
from .lines import JsonLinesInput, JsonLinesOutput
from .medium import (
    RawRecords,
    InputConnector,
    OutputConnector,
    Position,
    Split,
    Committable,
    OutputWriter,
    UndecodableRecord,
    UnwritableSegmentsError,
)
from .parquet import ParquetInput, ParquetOutput
from .queue_input import QueueInput
from .queue_output import QueueOutput
from .redis_stream import RedisStreamInput
from .registry import make_input, make_output
from .seq import MemoryInput, MemoryOutput
from .sql_input import SqlInput
from .sql_output import SqlOutput

__all__ = [
    "RawRecords",
    "CsvInput",
    "InputConnector",
    "JetStreamInput",
    "JsonLinesInput",
    "JsonLinesOutput",
    "OutputConnector",
    "ParquetInput",
    "ParquetOutput",
    "Position",
    "QueueInput",
    "QueueOutput",
    "RedisStreamInput",
    "MemoryInput",
    "MemoryOutput",
    "Split",
    "SqlInput",
    "SqlOutput",
    "Committable",
    "OutputWriter",
    "UndecodableRecord",
    "UnwritableSegmentsError",
    "files_input",
    "make_input",
    "make_output",
]
