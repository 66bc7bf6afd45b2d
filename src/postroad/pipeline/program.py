"""A job ready to run: its functions found, its routes known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .acks import Bits
from .flow import Router
from .functions import Function, resolve_function
from .graph import Graph
from .job import Job, TaskKind, Window


class Program:
    """What every runner needs of a job.

    Args:
        job: a valid one.
        find: how functions are found; import paths by default.

    Raises:
        ConfigError: a function is not there.
    """

    def __init__(self, job: Job, find: Callable[[str], Function] = resolve_function) -> None:
        self.job = job
        self.graph = Graph(job)
        self.bits = Bits(job.name)
        self.functions: dict[str, Function | None] = {
            task.name: None
            if task.fn is None or task.kind is not TaskKind.SEGMENT
            else bind(find(task.fn), task.params)
            for task in job.catalog
        }
        self.routers = {
            name: Router(name, self.graph.children[name], job.flow_conditions, find)
            for name in self.graph.order
        }
        self.windows: dict[str, list[Window]] = {}
        for window in job.windows:
            self.windows.setdefault(window.task, []).append(window)


def bind(function: Function, params: dict[str, Any]) -> Function:
    """A function with its parameters; the same function if it has none."""
    return partial(function, **params) if params else function
