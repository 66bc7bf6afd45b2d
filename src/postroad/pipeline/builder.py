"""A job written as Python, one call for each entry. It makes the same data as a file does.

clearing = (
    JobBuilder("clearing")
    .input("in", connector="memory")
    .function("parse", parse)
    .output("out", connector="memory")
    .output("errors", connector="memory", after="parse")
    .route("parse", to="out")
    .route_exception("parse", to="errors", post_transform=describe)
    .build()
)

Functions that can be imported become their import paths. Others, such as lambdas, stay with the job
as they are: it can be run, here or on Spark, and not be saved.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, Unpack

from postroad.core.errors import ConfigError
from postroad.pipeline.job import (
    FlowAction,
    Job,
    Refinement,
    RetryPolicy,
    SideInput,
    TaskKind,
    TaskType,
    TriggerType,
    WindowType,
)
from postroad.pipeline.validation import require_valid
from postroad.pipeline.validation.issues import is_local_function

FunctionRef: TypeAlias = str | Callable[..., Any]
"""An import path, or the function itself."""
Condition: TypeAlias = FunctionRef | dict[str, Any]
"""A predicate, or several put together: `{"and": [...]}`, `{"or": [...]}`, `{"not": ...}`."""

# Keys with an import path, or predicates put together of some.
_NAMED = frozenset({"fn", "predicate", "post_transform", "aggregation", "emit", "hooks"})


class TaskOptions(TypedDict, total=False):
    """What every task may have besides."""

    doc: str
    kind: TaskKind | str
    params: dict[str, Any]
    expressions: dict[str, str]
    columns: dict[str, str]
    time_limit_s: float
    concurrency: int
    side_inputs: dict[str, SideInput | dict[str, Any]]


class InputOptions(TaskOptions, total=False):
    """What an input may have besides."""

    options: dict[str, Any]
    schema: str
    id: list[str]
    batch_size: int
    max_pending: int
    pending_timeout_s: float
    retry: RetryPolicy | dict[str, Any]


class FunctionOptions(TaskOptions, total=False):
    """What a function may have besides."""

    group_by: str | list[str]
    state: bool


class OutputOptions(FunctionOptions, total=False):
    """What an output may have besides."""

    options: dict[str, Any]
    schema: str


class ExceptionConditionOptions(TypedDict, total=False):
    """What a condition on exceptions may have besides."""

    params: dict[str, Any]
    exclude_keys: list[str]
    action: FlowAction | str
    post_transform: FunctionRef


class FlowConditionOptions(ExceptionConditionOptions, total=False):
    """What a condition may have besides."""

    exceptions: bool
    short_circuit: bool


class WindowOptions(TypedDict, total=False):
    """What a window may have besides."""

    key: str
    time_key: str
    range_s: float
    slide_s: float
    gap_s: float
    allowed_lateness_s: float


class TriggerOptions(TypedDict, total=False):
    """What a trigger may have besides."""

    threshold: float
    predicate: FunctionRef
    refinement: Refinement | str
    emit: FunctionRef


class JobBuilder:
    """A job that is being written. Every call returns a new one, so beginnings can be shared."""

    def __init__(self, name: str, *, doc: str = "", metadata: dict[str, Any] | None = None) -> None:
        self._data: dict[str, Any] = {
            "name": name,
            "doc": doc,
            "metadata": metadata or {},
            "workflow": [],
            "catalog": [],
        }

    def build(self) -> Job:
        """The job; raises InvalidJobError with every problem there is."""
        return require_valid(self._data)

    def input(
        self,
        name: str,
        fn: FunctionRef | None = None,
        *,
        connector: str,
        **keys: Unpack[InputOptions],
    ) -> JobBuilder:
        """Add an input."""
        return self._add(
            "catalog", name=name, type=TaskType.INPUT, fn=fn, connector=connector, **keys
        )

    def function(
        self,
        name: str,
        fn: FunctionRef | None = None,
        *,
        after: str | Sequence[str] | None = None,
        **keys: Unpack[FunctionOptions],
    ) -> JobBuilder:
        """Add a function after one or several tasks; by default after the one added last."""
        followed = self._follow(name, after)
        return followed._add("catalog", name=name, type=TaskType.FUNCTION, fn=fn, **keys)

    def output(
        self,
        name: str,
        fn: FunctionRef | None = None,
        *,
        connector: str,
        after: str | Sequence[str] | None = None,
        **keys: Unpack[OutputOptions],
    ) -> JobBuilder:
        """Add an output after one or several tasks; by default after the one added last."""
        followed = self._follow(name, after)
        return followed._add(
            "catalog", name=name, type=TaskType.OUTPUT, fn=fn, connector=connector, **keys
        )

    def route(
        self,
        source: str,
        predicate: Condition | None = None,
        *,
        to: str | list[str],
        **keys: Unpack[FlowConditionOptions],
    ) -> JobBuilder:
        """Say where what a task makes goes; without a predicate, always."""
        entry = {"from": source, "to": to, "predicate": predicate, **keys}
        return self._add("flow_conditions", **entry)

    def route_exception(
        self,
        source: str,
        predicate: Condition | None = None,
        *,
        to: str | list[str],
        **keys: Unpack[ExceptionConditionOptions],
    ) -> JobBuilder:
        """Say where a segment goes whose function raised; without a predicate, whatever it was."""
        return self.route(source, predicate, to=to, exceptions=True, short_circuit=True, **keys)

    # What they were called before 0.2.
    when = route
    when_raised = route_exception

    def window(
        self,
        name: str,
        *,
        task: str,
        type: WindowType | str,
        aggregation: FunctionRef,
        **keys: Unpack[WindowOptions],
    ) -> JobBuilder:
        """Gather the segments of a task."""
        return self._add(
            "windows", name=name, task=task, type=type, aggregation=aggregation, **keys
        )

    def trigger(
        self, window: str, *, on: TriggerType | str, **keys: Unpack[TriggerOptions]
    ) -> JobBuilder:
        """Say when the contents of a window go on."""
        return self._add("triggers", window=window, on=on, **keys)

    def lifecycle(
        self, task: str, hooks: FunctionRef, *, params: dict[str, Any] | None = None
    ) -> JobBuilder:
        """Hook something into a task, or into all."""
        return self._add("lifecycles", task=task, hooks=hooks, params=params)

    def _follow(self, name: str, after: str | Sequence[str] | None) -> JobBuilder:
        last = [task["name"] for task in self._data["catalog"][-1:]]
        parents = last if after is None else [after] if isinstance(after, str) else after
        edges = [*self._data["workflow"], *([parent, name] for parent in parents)]
        return self._with(workflow=edges)

    def _add(self, section: str, /, **entry: Any) -> JobBuilder:
        functions = dict(self._data.get("functions", {}))
        data = {
            key: _as_data(value, functions) if key in _NAMED else value
            for key, value in entry.items()
            if value is not None
        }
        entries = {section: [*self._data.get(section, []), data]}
        return self._with(**entries, **({"functions": functions} if functions else {}))

    def _with(self, **sections: Any) -> JobBuilder:
        builder = copy.copy(self)
        builder._data = {**self._data, **sections}
        return builder


def new_job(name: str, *, doc: str = "", metadata: dict[str, Any] | None = None) -> JobBuilder:
    """Begin a job, as before 0.2: `JobBuilder` does it."""
    return JobBuilder(name, doc=doc, metadata=metadata)


def import_path(function: Callable[..., Any]) -> str:
    """The import path of an object; raises ConfigError if other processes cannot import it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(f"{function!r} has no name to find it by; give a function of a module")
    if name.endswith("<lambda>"):
        raise ConfigError(f"a lambda in {module!r} has no name to find it by; define a function")
    if "<locals>" in name:
        inner, outer = name.rpartition(".")[2], name.partition(".<locals>")[0]
        raise ConfigError(
            f"{inner!r} is defined inside {outer!r} and cannot be found from outside; "
            f"move it to the top of the module {module!r}"
        )
    if not _is_found(function, module, name):
        raise ConfigError(
            f"'{module}:{name}' is another object than {function!r}; give the function itself"
        )
    return f"{module}:{name}"


def _is_found(function: Callable[..., Any], module: str, name: str) -> bool:
    """A method of an object, for one, is not: the path leads to that of the class."""
    try:
        return bool(attrgetter(name)(sys.modules.get(module)) == function)
    except AttributeError:
        return False


def _as_data(value: Any, functions: dict[str, Callable[..., Any]]) -> Any:
    """Names for functions, also within combined predicates; adds local ones to `functions`."""
    if isinstance(value, dict):
        return {key: _as_data(item, functions) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_data(item, functions) for item in value]
    if not callable(value):
        return value
    try:
        path = import_path(value)
    except ConfigError:
        path = _local_name(value, functions)
    if path.startswith("__main__:") or is_local_function(path):
        functions[path] = value
    return path


def _local_name(function: Callable[..., Any], functions: dict[str, Callable[..., Any]]) -> str:
    """A name for a function that has none, the same in every run of the program."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__).strip("<>")
    place = "" if code is None else f" at {Path(code.co_filename).name}:{code.co_firstlineno}"
    for number in itertools.count(1):
        local = f"<{name}{place}{f' #{number}' if number > 1 else ''}>"
        if functions.get(local, function) is function:
            return local
    raise AssertionError("numbers do not end")
