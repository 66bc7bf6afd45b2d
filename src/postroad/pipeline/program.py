"""A job ready to run: its functions found, its routes known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from .acks import AckIds
from .arrow_tasks import ArrowFunction
from .flow import FlowRouter
from .functions import Function, import_function
from .graph import JobGraph
from .job import Job, Task, TaskKind
from .lifecycles import LifecycleHooks
from .time_limits import TimeLimitedFunction
from .windows import CompiledWindows


class CompiledJob:
    """What every runner needs of a job.

    Args:
        job: a valid one.
        find: how functions are found; import paths by default.

    Raises:
        ConfigError: a function is not there.
    """

    def __init__(self, job: Job, find: Callable[[str], Function] = import_function) -> None:
        # Words such as "input" may be texts where the job was written in Python.
        self.job = job = msgspec.convert(msgspec.to_builtins(job), Job)
        self.graph = JobGraph(job)
        self.ack_ids = AckIds(job.name)
        self.lifecycles = LifecycleHooks(job, find)
        self.functions = {task.name: _function_of(task, find) for task in job.catalog}
        self.sql_tasks = frozenset(it.name for it in job.catalog if it.kind is TaskKind.SQL)
        self.routers = {
            name: FlowRouter(name, self.graph.children[name], job.flow_conditions, find)
            for name in self.graph.order
        }
        # Whether functions may end the process that calls them, and are to be tried in another.
        self.isolate_functions = False
        self.is_multi_stage = len(self.graph.stages) > 1
        self.resolve = find
        self.windows = CompiledWindows(job.windows, job.triggers, find)
        self.windowed_tasks = frozenset(window.task for window in job.windows)

    def start(self) -> None:
        """Have the lifecycles begin: functions get what these give them."""
        for name, given in self.lifecycles.start().items():
            function = self.functions[name]
            if isinstance(function, ArrowFunction):
                self.functions[name] = function.bind(**given)
            elif function is not None:
                self.functions[name] = partial(function, **given)


def _function_of(task: Task, find: Callable[[str], Function]) -> Function | None:
    if task.fn is None:
        return None
    function = find(task.fn)
    if task.params:
        function = partial(function, **task.params)
    if task.kind is TaskKind.ARROW:
        function = ArrowFunction(function)
    return function if task.time_limit_s is None else TimeLimitedFunction(function, task.time_limit_s)
