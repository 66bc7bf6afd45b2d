"""Where segments come from and where they go."""

from __future__ import annotations

from .comma_separated import CsvInput
from .files import files_input
from .jetstream import JetStreamInput
from .lines import LinesInput, LinesOutput
from .medium import (
    Chunk,
    InputMedium,
    OutputMedium,
    Place,
    Slice,
    Staged,
    Stager,
    Undecodable,
    Unwritable,
)
from .parquet import ParquetInput, ParquetOutput
from .queue_input import QueueInput
from .queue_output import QueueOutput
from .redis_stream import RedisStreamInput
from .registry import make_input, make_output
from .seq import SeqInput, SeqOutput
from .sql_input import SqlInput
from .sql_output import SqlOutput

__all__ = [
    "Chunk",
    "CsvInput",
    "InputMedium",
    "JetStreamInput",
    "LinesInput",
    "LinesOutput",
    "OutputMedium",
    "ParquetInput",
    "ParquetOutput",
    "Place",
    "QueueInput",
    "QueueOutput",
    "RedisStreamInput",
    "SeqInput",
    "SeqOutput",
    "Slice",
    "SqlInput",
    "SqlOutput",
    "Staged",
    "Stager",
    "Undecodable",
    "Unwritable",
    "files_input",
    "make_input",
    "make_output",
]
