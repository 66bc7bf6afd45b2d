"""Where segments come from and where they go."""

from __future__ import annotations

from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    OutputConnector,
    OutputWriter,
    Position,
    RawRecords,
    RejectedSegment,
    Split,
    UndecodableRecord,
    UnwritableSegmentsError,
)
from postroad.pipeline.connectors.files.csv import CsvInput
from postroad.pipeline.connectors.files.json_lines import JsonLinesInput, JsonLinesOutput
from postroad.pipeline.connectors.files.lakehouse import DeltaOutput, IcebergOutput
from postroad.pipeline.connectors.files.parquet import ParquetInput, ParquetOutput
from postroad.pipeline.connectors.jetstream.input import JetStreamInput
from postroad.pipeline.connectors.memory import MemoryInput, MemoryOutput
from postroad.pipeline.connectors.queue.input import QueueInput
from postroad.pipeline.connectors.queue.output import QueueOutput
from postroad.pipeline.connectors.redis.input import RedisStreamInput
from postroad.pipeline.connectors.registry import files_input, make_input, make_output
from postroad.pipeline.connectors.sql.input import SqlInput
from postroad.pipeline.connectors.sql.output import SqlOutput

__all__ = [
    "Committable",
    "CsvInput",
    "DeltaOutput",
    "IcebergOutput",
    "InputConnector",
    "JetStreamInput",
    "JsonLinesInput",
    "JsonLinesOutput",
    "MemoryInput",
    "MemoryOutput",
    "OutputConnector",
    "OutputWriter",
    "ParquetInput",
    "ParquetOutput",
    "Position",
    "QueueInput",
    "QueueOutput",
    "RawRecords",
    "RedisStreamInput",
    "RejectedSegment",
    "Split",
    "SqlInput",
    "SqlOutput",
    "UndecodableRecord",
    "UnwritableSegmentsError",
    "files_input",
    "make_input",
    "make_output",
]
