"""A job ready to run: its functions found, its routes known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from .acks import Bits
from .arrow_tasks import ArrowTask
from .flow import Router
from .functions import Function, resolve_function
from .graph import Graph
from .job import Job, Task, TaskKind
from .lifecycles import Lifecycles
from .time_limits import Limited
from .windows import WindowPlan


class Program:
    """What every runner needs of a job.

    Args:
        job: a valid one.
        find: how functions are found; import paths by default.

    Raises:
        ConfigError: a function is not there.
    """

    def __init__(self, job: Job, find: Callable[[str], Function] = resolve_function) -> None:
        # Words such as "input" may be texts where the job was written in Python.
        self.job = job = msgspec.convert(msgspec.to_builtins(job), Job)
        self.graph = Graph(job)
        self.bits = Bits(job.name)
        self.lifecycles = Lifecycles(job, find)
        self.functions = {task.name: _function_of(task, find) for task in job.catalog}
        self.computed = frozenset(it.name for it in job.catalog if it.kind is TaskKind.SQL)
        self.routers = {
            name: Router(name, self.graph.children[name], job.flow_conditions, find)
            for name in self.graph.order
        }
        # Whether functions may end the process that calls them, and are to be tried in another.
        self.is_careful = False
        self.is_staged = len(self.graph.stages) > 1
        self.find = find
        self.plan = WindowPlan(job.windows, job.triggers, find)
        self.windowed = frozenset(window.task for window in job.windows)

    def start(self) -> None:
        """Have the lifecycles begin: functions get what these give them."""
        for name, given in self.lifecycles.start().items():
            function = self.functions[name]
            if isinstance(function, ArrowTask):
                self.functions[name] = function.with_arguments(**given)
            elif function is not None:
                self.functions[name] = partial(function, **given)


def _function_of(task: Task, find: Callable[[str], Function]) -> Function | None:
    if task.fn is None:
        return None
    function = find(task.fn)
    if task.params:
        function = partial(function, **task.params)
    if task.kind is TaskKind.ARROW:
        function = ArrowTask(function)
    return function if task.time_limit_s is None else Limited(function, task.time_limit_s)
