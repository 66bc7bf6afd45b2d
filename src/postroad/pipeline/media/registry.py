"""Media by name: those that come with Postroad, and those of other packages.

A package adds its own by entry points in the groups `postroad.pipeline.inputs` and
`postroad.pipeline.outputs`: a name, and a class whose arguments are the options of a task.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import TypeVar

from postroad.core.errors import ConfigError
from postroad.durable import Mail, Store
from postroad.pipeline.job import Task, TaskType

from .comma_separated import CsvInput
from .files import files_input
from .jetstream import JetStreamInput
from .lines import JsonLinesInput, JsonLinesOutput
from .medium import InputConnector, OutputConnector
from .parquet import ParquetInput, ParquetOutput
from .queue_input import QueueInput
from .queue_output import QueueOutput
from .redis_stream import RedisStreamInput
from .sql_input import SqlInput
from .sql_output import SqlOutput

M = TypeVar("M")

INPUTS: Mapping[str, Callable[..., InputConnector]] = {
    "csv": CsvInput,
    "files": files_input,
    "jetstream": JetStreamInput,
    "parquet": ParquetInput,
    "sql": SqlInput,
    "lines": JsonLinesInput,
    "queue": QueueInput,
    "redis_stream": RedisStreamInput,
}
OUTPUTS: Mapping[str, Callable[..., OutputConnector]] = {
    "parquet": ParquetOutput,
    "sql": SqlOutput,
    "lines": JsonLinesOutput,
    "queue": QueueOutput,
}


# Media of the node that runs the job: they are given its mail before their options.
_OF_A_NODE = frozenset({"queue"})


def make_input(task: Task, mail: Mail | Store | None = None) -> InputConnector:
    """The input of a task.

    Args:
        task: says which, and with what options.
        mail: of the node that runs the job, if one does, or its store.

    Raises:
        ConfigError: there is none such, it refuses its options, or it needs a node.
    """
    return _make(task, mail, INPUTS, "postroad.pipeline.inputs")


def make_output(task: Task, mail: Mail | Store | None = None) -> OutputConnector:
    """The output of a task, likewise."""
    return _make(task, mail, OUTPUTS, "postroad.pipeline.outputs")


def _make(
    task: Task, mail: Mail | Store | None, known: Mapping[str, Callable[..., M]], group: str
) -> M:
    maker = known.get(task.medium or "")
    if maker is None:
        maker = _find(task, known, group)
    elif task.medium in _OF_A_NODE:
        if mail is None:
            does = "reads" if task.type == TaskType.INPUT else "posts to"
            raise ConfigError(f"task {task.name!r} {does} a {task.medium}: run the job in a node")
        maker = partial(maker, mail)
    try:
        return maker(**task.options)
    except TypeError as error:
        raise ConfigError(
            f"options of {task.name!r} do not suit {task.medium!r}: {error}"
        ) from None


def _find(task: Task, known: Mapping[str, Callable[..., M]], group: str) -> Callable[..., M]:
    others = {entry.name: entry for entry in entry_points(group=group)}
    if task.medium in others:
        maker: Callable[..., M] = others[task.medium].load()
        return maker
    names = sorted({*known, *others})
    near = difflib.get_close_matches(task.medium or "", names, 1)
    advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    raise ConfigError(f"task {task.name!r} has an unknown medium {task.medium!r}; {advice}")
