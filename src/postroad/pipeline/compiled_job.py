"""A job with imported functions, routers, windows and lifecycle hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.acks import AckIds
from postroad.pipeline.functions import Function, import_function
from postroad.pipeline.graph import JobGraph
from postroad.pipeline.job import ALL, Job, Task, TaskKind
from postroad.pipeline.routing import FlowRouter
from postroad.pipeline.side_inputs import SideInputs
from postroad.pipeline.task_functions import (
    ArrowFunction,
    AsyncFunction,
    FunctionLoop,
    GroupFunction,
    is_async,
)
from postroad.pipeline.time_limits import TimeLimit
from postroad.pipeline.windows import CompiledWindows


class CompiledJob:
    """What every runner needs of a valid job; raises ConfigError if a function is not there."""

    def __init__(self, job: Job, find: Callable[[str], Function] = import_function) -> None:
        local = job.functions
        # Words such as "input" may be texts where the job was written in Python.
        plain = msgspec.to_builtins(msgspec.structs.replace(job, functions={}))
        self.job = job = msgspec.structs.replace(msgspec.convert(plain, Job), functions=local)
        self._local = local
        self._find = find
        self.graph = JobGraph(job)
        self.ack_ids = AckIds(job.name)
        self.lifecycles = LifecycleHooks(job, self.resolve)
        self._loop = FunctionLoop()
        self.functions = {task.name: self._function_of(task) for task in job.catalog}
        # Without what lifecycles and side inputs give them.
        self._unbound = dict(self.functions)
        self._given: dict[str, dict[str, Any]] = {}
        self._side_inputs = {
            task.name: SideInputs(task, self._loop) for task in job.catalog if task.side_inputs
        }
        self.time_limits = {task.name: self._time_limit(task) for task in job.catalog}
        self.sql_tasks = frozenset(task.name for task in job.catalog if task.kind is TaskKind.SQL)
        self.dataframe_tasks = frozenset(
            task.name for task in job.catalog if task.kind is TaskKind.DATAFRAME
        )
        self.routers = {
            name: FlowRouter(name, self.graph.children[name], job.flow_conditions, self.resolve)
            for name in self.graph.order
        }
        # Whether functions may end or block the process that calls them: they run in another.
        self.isolate_functions = False
        self.is_multi_stage = len(self.graph.stages) > 1
        self.windows = CompiledWindows(job.windows, job.triggers, self.resolve)
        self.group_tasks = frozenset(
            task.name for task in job.catalog if task.kind is TaskKind.GROUP
        )
        self.gathering_tasks = self.group_tasks | self.dataframe_tasks
        """Those whose functions are called when all of a batch is known."""
        # Segments end there, and what goes on are new roots.
        self.windowed_tasks = self.gathering_tasks | {window.task for window in job.windows}
        # How states of groups are read, by task and keys: a runner that keeps any sets it.
        self.read_states: Callable[[str, Sequence[bytes]], Mapping[bytes, bytes]] | None = None
        # Types of the columns that functions of DataFrames see, by task: Spark knows them.
        self.column_types: Mapping[str, Any] = {}

    def runs_results_at_once(self, task: str) -> bool:
        """Whether what a function of groups makes can go to its end in the pass that made it."""
        waiting, known = [task], {task}
        while waiting:
            after = set(self.graph.children[waiting.pop()]) - known
            known |= after
            waiting += after
        return not self.is_multi_stage and self.gathering_tasks.isdisjoint(known - {task})

    def start(self) -> None:
        """Have the lifecycles begin and read side inputs: functions get what these give them."""
        self._given = self.lifecycles.start()
        for name, inputs in self._side_inputs.items():
            inputs.load()
            self._given.setdefault(name, {})
        for name in self._given:
            self._bind(name)

    def before_batch(self) -> None:
        """A batch begins: read side inputs again that are too old, and call the hooks."""
        for name, inputs in self._side_inputs.items():
            if inputs.refresh():
                self._bind(name)
        self.lifecycles.before_batch()

    def _bind(self, name: str) -> None:
        function, given = self._unbound[name], dict(self._given[name])
        if name in self._side_inputs:
            given |= self._side_inputs[name].values
        if isinstance(function, ArrowFunction | AsyncFunction):
            self.functions[name] = function.bind(**given)
        elif function is not None:
            self.functions[name] = partial(function, **given)

    def resolve(self, path: str) -> Function:
        """The function that an entry of the job names."""
        local: Function | None = self._local.get(path)
        return self._find(path) if local is None else local

    def stop(self) -> None:
        """Have the lifecycles end."""
        try:
            self.lifecycles.stop()
        finally:
            self._loop.close()

    def _function_of(self, task: Task) -> Function | None:
        if task.fn is None:
            return None
        function = self.resolve(task.fn)
        if task.params:
            function = partial(function, **task.params)
        if task.kind is TaskKind.ARROW:
            return ArrowFunction(function)
        if task.kind is TaskKind.GROUP:
            group = GroupFunction(function, task.state)
            function = group.call_async if is_async(function) else group
        if task.kind is not TaskKind.DATAFRAME and is_async(function):
            return AsyncFunction(function, task.concurrency, self._loop)
        return function

    def _time_limit(self, task: Task) -> TimeLimit:
        """Its own, or that of the input whose segments may take longest."""
        if task.time_limit_s is not None:
            return TimeLimit(task.name, task.time_limit_s)
        inputs = self.graph.inputs_of[task.name]
        times_s = [self.graph.tasks[name].pending_timeout_s for name in inputs]
        return TimeLimit(task.name, max(times_s, default=task.pending_timeout_s))


HOOKS = ("before_task", "before_batch", "after_batch", "after_task")


class LifecycleHooks:
    """The lifecycles of a job, in order."""

    def __init__(self, job: Job, find: Callable[[str], Any]) -> None:
        self._calls: list[tuple[list[str], dict[str, Any], dict[str, Callable[..., Any]]]] = []
        names = [task.name for task in job.catalog]
        for lifecycle in job.lifecycles:
            tasks = names if lifecycle.task == ALL else [lifecycle.task]
            self._calls.append(
                (tasks, lifecycle.params, _hooks_of(lifecycle.hooks, find(lifecycle.hooks)))
            )

    def start(self) -> dict[str, dict[str, Any]]:
        """Begin; returns keyword arguments for the function of each task."""
        given: dict[str, dict[str, Any]] = {}
        for tasks, params, hooks in self._calls:
            if (before := hooks.get("before_task")) is None:
                continue
            for task in tasks:
                given.setdefault(task, {}).update(before(**params) or {})
        return given

    def before_batch(self) -> None:
        """A batch begins."""
        self._call("before_batch")

    def after_batch(self) -> None:
        """A batch is committed."""
        self._call("after_batch")

    def stop(self) -> None:
        """All is over."""
        self._call("after_task")

    def _call(self, name: str) -> None:
        for tasks, _, hooks in self._calls:
            if name in hooks:
                for _ in tasks:
                    hooks[name]()


def _hooks_of(path: str, make: Callable[[], object]) -> dict[str, Callable[..., Any]]:
    holder = make()
    hooks = {name: hook for name in HOOKS if (hook := getattr(holder, name, None)) is not None}
    if not hooks:
        raise ConfigError(f"{path!r} has no hooks; define one of {', '.join(HOOKS)}")
    return hooks
