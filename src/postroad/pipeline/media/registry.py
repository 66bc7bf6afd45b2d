"""Media by name: those that come with Postroad, and those of other packages.

A package adds its own by entry points in the groups `postroad.pipeline.inputs` and
`postroad.pipeline.outputs`: a name, and a class whose arguments are the options of a task.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Task

from .lines import LinesInput, LinesOutput
from .medium import InputMedium, OutputMedium

M = TypeVar("M")

INPUTS: Mapping[str, Callable[..., InputMedium]] = {"lines": LinesInput}
OUTPUTS: Mapping[str, Callable[..., OutputMedium]] = {"lines": LinesOutput}


def make_input(task: Task) -> InputMedium:
    """The input of a task; raises ConfigError if there is none such, or it refuses its options."""
    return _make(task, INPUTS, "postroad.pipeline.inputs")


def make_output(task: Task) -> OutputMedium:
    """The output of a task; raises ConfigError likewise."""
    return _make(task, OUTPUTS, "postroad.pipeline.outputs")


def _make(task: Task, known: Mapping[str, Callable[..., M]], group: str) -> M:
    maker = known.get(task.medium or "")
    if maker is None:
        maker = _find(task, known, group)
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
