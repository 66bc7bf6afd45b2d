"""Connectors by name and entry point."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from pathlib import PurePath
from typing import Any, TypeVar

from postroad.core.errors import ConfigError
from postroad.durable import DurableQueues, Store
from postroad.pipeline.connectors.connector import InputConnector, OutputConnector
from postroad.pipeline.connectors.files.csv import CsvInput
from postroad.pipeline.connectors.files.json_lines import JsonLinesInput, JsonLinesOutput
from postroad.pipeline.connectors.files.lakehouse import DeltaOutput, IcebergOutput
from postroad.pipeline.connectors.files.parquet import ParquetInput, ParquetOutput
from postroad.pipeline.connectors.jetstream.input import JetStreamInput
from postroad.pipeline.connectors.queue.input import QueueInput
from postroad.pipeline.connectors.queue.output import QueueOutput
from postroad.pipeline.connectors.redis.input import RedisStreamInput
from postroad.pipeline.connectors.spark import SparkInput, SparkOutput
from postroad.pipeline.connectors.sql.input import SqlInput
from postroad.pipeline.connectors.sql.output import SqlOutput
from postroad.pipeline.job import Task, TaskType

M = TypeVar("M")

_FORMATS: Mapping[str, Callable[..., InputConnector]] = {
    "csv": CsvInput,
    "jsonl": JsonLinesInput,
    "parquet": ParquetInput,
}
_ENDINGS: Mapping[str, str] = {
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tsv": "csv",
}


def files_input(path: str, format: str | None = None, **options: Any) -> InputConnector:
    """Files of lines, comma-separated values or Parquet.

    Args:
        path: of a file, or a pattern such as `in/*.csv`.
        format: `jsonl`, `csv` or `parquet`; by how the path ends, if it is not given.
        options: those of the format.

    Raises:
        ConfigError: it is not known which format it is.
    """
    ending = PurePath(path).suffix.lower()
    found = _ENDINGS.get(ending, "") if format is None else format
    if found not in _FORMATS:
        known = ", ".join(sorted(_FORMATS))
        raise ConfigError(f"option 'format' is needed for {path!r}: one of {known}")
    if ending == ".tsv" and found == "csv":
        options = {"delimiter": "\t"} | options
    return _FORMATS[found](path, **options)


INPUTS: Mapping[str, Callable[..., InputConnector]] = {
    "csv": CsvInput,
    "files": files_input,
    "jetstream": JetStreamInput,
    "parquet": ParquetInput,
    "sql": SqlInput,
    "jsonl": JsonLinesInput,
    "queue": QueueInput,
    "redis": RedisStreamInput,
    "spark": SparkInput,
}
OUTPUTS: Mapping[str, Callable[..., OutputConnector]] = {
    "delta": DeltaOutput,
    "iceberg": IcebergOutput,
    "parquet": ParquetOutput,
    "sql": SqlOutput,
    "jsonl": JsonLinesOutput,
    "queue": QueueOutput,
    "spark": SparkOutput,
}


OLD_NAMES: Mapping[str, str] = {"lines": "jsonl", "redis_stream": "redis", "seq": "memory"}
"""What connectors were called before 0.2, and jobs may still call them."""

# Connectors of the node that runs the job: they are given its durable queues before their options.
_OF_A_NODE = frozenset({"queue"})


def make_input(task: Task, queues: DurableQueues | Store | None = None) -> InputConnector:
    """The input of a task.

    Args:
        task: says which, and with what options.
        queues: of the node that runs the job, if one does, or its store.

    Raises:
        ConfigError: there is none such, it refuses its options, or it needs a node.
    """
    return _make(task, queues, INPUTS, "postroad.pipeline.inputs")


def make_output(task: Task, queues: DurableQueues | Store | None = None) -> OutputConnector:
    """The output of a task, likewise."""
    return _make(task, queues, OUTPUTS, "postroad.pipeline.outputs")


def _make(
    task: Task,
    queues: DurableQueues | Store | None,
    known: Mapping[str, Callable[..., M]],
    group: str,
) -> M:
    maker = known.get(OLD_NAMES.get(task.connector or "", task.connector or ""))
    if maker is None:
        maker = _find(task, known, group)
    elif task.connector in _OF_A_NODE:
        if queues is None:
            does = "reads" if task.type == TaskType.INPUT else "sends to"
            raise ConfigError(f"task {task.name!r} {does} a queue of a node: run the job in one")
        maker = partial(maker, queues)
    try:
        return maker(**task.options)
    except TypeError as error:
        raise ConfigError(
            f"options of {task.name!r} do not suit {task.connector!r}: {error}"
        ) from None


def _find(task: Task, known: Mapping[str, Callable[..., M]], group: str) -> Callable[..., M]:
    others = {entry.name: entry for entry in entry_points(group=group)}
    if task.connector in others:
        maker: Callable[..., M] = others[task.connector].load()
        return maker
    names = sorted({*known, *others})
    near = difflib.get_close_matches(task.connector or "", names, 1)
    advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    raise ConfigError(f"task {task.name!r} has an unknown connector {task.connector!r}; {advice}")
