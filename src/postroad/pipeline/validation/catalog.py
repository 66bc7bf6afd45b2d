"""Rules of the catalog and the workflow."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from postroad.pipeline.job import ALL, NONE, Edge, RetryPolicy, Task, TaskKind, TaskType
from postroad.pipeline.validation.issues import (
    JobIssue,
    bad_data,
    bad_import_path,
    bad_name,
    bad_numbers,
    default_of,
    nearest,
    suggestion,
)
from postroad.pipeline.validation.parsing import ParsedJob

INPUT_NUMBERS = ("batch_size", "max_pending", "pending_timeout_s")
INPUT_KEYS = (*INPUT_NUMBERS, "retry")
RESERVED_COLUMNS = "_postroad_"


def catalog_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    """Names first, then every task by itself."""
    if not draft.task_names and "catalog" not in draft.incomplete:
        yield JobIssue("catalog", "has no entries")
    for name, count in Counter(draft.task_names).items():
        if count > 1:
            yield JobIssue(f"catalog {name!r}", f"is there {count} times", ("name",))
        if name in (ALL, NONE):
            yield JobIssue(f"catalog {name!r}", f"the name {name!r} is reserved", ("name",))
        yield from bad_name(f"catalog {name!r}", name)
    for label, task in draft.tasks:
        yield from _function_problems(label, task)
        yield from _expression_problems(label, task)
        yield from _side_input_problems(label, task)
        yield from _dataframe_problems(label, task)
        yield from _group_function_problems(label, task)
        yield from _group_problems(label, task)
        yield from _medium_problems(label, task)
        yield from bad_numbers(label, task, ["time_limit_s", "concurrency"])
        yield from bad_data(label, "params", task.params)
        yield from bad_data(label, "options", task.options)
        if task.type is TaskType.INPUT:
            yield from _input_problems(label, task)
        else:
            yield from _keys_of_inputs(label, task)


def _function_problems(label: str, task: Task) -> Iterator[JobIssue]:
    yield from bad_import_path(label, "fn", task.fn)
    if task.kind is TaskKind.SQL and task.fn is not None:
        yield JobIssue(label, "kind 'sql' has expressions and no fn", ("kind", "fn"))
    if task.fn is not None:
        return
    if task.type is TaskType.FUNCTION and task.kind is not TaskKind.SQL:
        yield JobIssue(label, f"a function of kind {task.kind.value!r} needs fn", ("fn", "kind"))
    if task.params:
        yield JobIssue(label, "params without fn mean nothing", ("params", "fn"))
    if task.time_limit_s is not None:
        yield JobIssue(label, "time_limit_s without fn means nothing", ("time_limit_s", "fn"))


def _expression_problems(label: str, task: Task) -> Iterator[JobIssue]:
    for key, one in (("expressions", "expression"), ("columns", "column")):
        found = getattr(task, key)
        kinds = [TaskKind.SQL, TaskKind.DATAFRAME] if key == "columns" else [TaskKind.SQL]
        if task.kind not in kinds and found:
            names = " and ".join(repr(kind.value) for kind in kinds)
            yield JobIssue(label, f"{key} are for kind {names} only", ("kind", key))
        if task.kind in kinds and not found:
            problem = f"kind {task.kind.value!r} needs at least one {one}"
            yield JobIssue(label, problem, ("kind", key))
        for name, text in found.items():
            if not name or not text.strip():
                problem = f"{one} {name!r}={text!r} needs a name and a text"
                yield JobIssue(label, problem, (key,))
        # To Spark they are the same.
        for folded, count in Counter(map(str.casefold, found)).items():
            if count > 1:
                problem = f"{key} has {folded!r} {count} times: upper and lower case are one"
                yield JobIssue(label, problem, (key,))
    if task.kind is TaskKind.SQL and task.type is TaskType.INPUT:
        yield JobIssue(label, "kind 'sql' is for functions and outputs only", ("kind", "type"))
    for name in task.columns:
        if name.casefold().startswith(RESERVED_COLUMNS):
            problem = f"column {name!r}: names that begin so are reserved"
            yield JobIssue(label, problem, ("columns",))


def _side_input_problems(label: str, task: Task) -> Iterator[JobIssue]:
    keys = ("side_inputs",)
    if task.side_inputs and task.fn is None:
        yield JobIssue(label, "side_inputs without fn mean nothing", ("side_inputs", "fn"))
    for name, side in task.side_inputs.items():
        if not name.isidentifier():
            text = f"side input {name!r} must be a name that a function can have for it"
            yield JobIssue(label, text, keys)
        if name in task.params:
            yield JobIssue(label, f"{name!r} is a side input and among params", (*keys, "params"))
        for empty in (key for key in ("connector", "key") if getattr(side, key) == ""):
            yield JobIssue(label, f"side_inputs.{name}.{empty} must not be empty", keys)
        yield from bad_numbers(label, side, ["refresh_s"], prefix=f"side_inputs.{name}.")
        for issue in bad_data(label, f"side_inputs.{name}.options", side.options):
            yield JobIssue(issue.entry, issue.text, keys)


def _dataframe_problems(label: str, task: Task) -> Iterator[JobIssue]:
    if task.kind is not TaskKind.DATAFRAME:
        return
    if task.type is not TaskType.FUNCTION:
        yield JobIssue(label, "kind 'dataframe' is for functions only", ("kind", "type"))
    if task.group_by is not None:
        text = "kind 'dataframe' has no group_by: group its DataFrame"
        yield JobIssue(label, text, ("kind", "group_by"))
    if task.side_inputs:
        text = "kind 'dataframe' has no side_inputs: have Spark read what its function joins"
        yield JobIssue(label, text, ("kind", "side_inputs"))


def _group_function_problems(label: str, task: Task) -> Iterator[JobIssue]:
    is_group = task.kind is TaskKind.GROUP
    if is_group and task.type is not TaskType.FUNCTION:
        yield JobIssue(label, "kind 'group' is for functions only", ("kind", "type"))
    if is_group and task.group_by is None:
        yield JobIssue(label, "kind 'group' needs group_by", ("kind", "group_by"))
    if task.state and not is_group:
        yield JobIssue(label, "state is for kind 'group' only", ("kind", "state"))


def _group_problems(label: str, task: Task) -> Iterator[JobIssue]:
    if task.group_by is None:
        return
    if task.type is TaskType.INPUT:
        yield JobIssue(label, "group_by is for functions and outputs only", ("group_by", "type"))
    keys = [task.group_by] if isinstance(task.group_by, str) else task.group_by
    if not keys or "" in keys:
        yield JobIssue(label, f"group_by={task.group_by!r} must not be empty", ("group_by",))
    for key, count in Counter(keys).items():
        if count > 1:
            yield JobIssue(label, f"group_by has {key!r} {count} times", ("group_by",))


def _medium_problems(label: str, task: Task) -> Iterator[JobIssue]:
    if task.type is not TaskType.FUNCTION:
        if not task.connector:
            yield JobIssue(label, f"an {task.type} needs a connector", ("connector", "type"))
        return
    if task.connector is not None:
        yield JobIssue(label, "a function has no connector", ("connector", "type"))
    if task.options:
        yield JobIssue(
            label, "options are for a connector, and a function has none", ("options", "type")
        )


def _input_problems(label: str, task: Task) -> Iterator[JobIssue]:
    yield from bad_numbers(label, task, INPUT_NUMBERS)
    if task.max_pending < task.batch_size:
        text = f"max_pending={task.max_pending} is less than batch_size={task.batch_size}"
        yield JobIssue(label, text, ("max_pending", "batch_size"))
    yield from _retry_problems(label, task.retry)


def _retry_problems(label: str, retry: RetryPolicy) -> Iterator[JobIssue]:
    yield from bad_numbers(label, retry, retry.__struct_fields__, prefix="retry.")
    if retry.first_s > retry.max_s:
        text = f"retry.first_s={retry.first_s} is more than retry.max_s={retry.max_s}"
        yield JobIssue(label, text, ("retry.first_s", "retry.max_s", "retry"))


def _keys_of_inputs(label: str, task: Task) -> Iterator[JobIssue]:
    for key in INPUT_KEYS:
        if getattr(task, key) != default_of(Task, key):
            yield JobIssue(label, f"{key} is for inputs only", (key, "type"))


WORKFLOW = "workflow"


def workflow_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    """Unknown names, edges that are there twice, cycles, and tasks that are wrongly connected."""
    if not draft.edges and WORKFLOW not in draft.incomplete:
        yield JobIssue(WORKFLOW, "has no edges")
        return
    if "catalog" not in draft.unreadable:
        yield from _unknown_names(draft)
    yield from _repeated_edges(draft)
    edges = corrected_edges(draft)
    yield from _cycles(edges)
    if WORKFLOW not in draft.incomplete:
        yield from _wrong_ends(draft, edges)


def corrected_edges(draft: ParsedJob) -> list[Edge]:
    """The edges, with names taken for the nearest ones where they are unknown."""
    return [
        (nearest_task(draft, source), nearest_task(draft, target))
        for _, (source, target) in draft.edges
    ]


def nearest_task(draft: ParsedJob, name: str) -> str:
    """The name if there is such a task, else the one that was probably meant."""
    if name in draft.task_names:
        return name
    return nearest(name, draft.task_names) or name


def _unknown_names(draft: ParsedJob) -> Iterator[JobIssue]:
    for label, edge in draft.edges:
        for name in dict.fromkeys(edge):
            if name not in draft.task_names:
                text = f"{name!r} is not in the catalog{suggestion(name, draft.task_names)}"
                yield JobIssue(label, text)


def _repeated_edges(draft: ParsedJob) -> Iterator[JobIssue]:
    first: dict[Edge, str] = {}
    for label, edge in draft.edges:
        if edge in first:
            yield JobIssue(label, f"repeats {first[edge]}")
        first.setdefault(edge, label)


def _cycles(edges: list[Edge]) -> Iterator[JobIssue]:
    """Report a cycle, break it, and look for the next."""
    remaining = set(edges)
    while True:
        followers: dict[str, list[str]] = {}
        for source, target in sorted(remaining):
            followers.setdefault(target, []).append(source)
        try:
            graphlib.TopologicalSorter(followers).prepare()
        except graphlib.CycleError as error:
            cycle: list[str] = error.args[1]
        else:
            return
        yield JobIssue(WORKFLOW, f"has a cycle: {' -> '.join(map(repr, cycle))}")
        remaining.difference_update(pairwise(cycle))


def _wrong_ends(draft: ParsedJob, edges: list[Edge]) -> Iterator[JobIssue]:
    sources = {source for source, _ in edges}
    targets = {target for _, target in edges}
    for label, task in draft.tasks:
        follows, leads = task.name in targets, task.name in sources
        if not follows and not leads:
            yield JobIssue(label, "is not used in the workflow")
        elif task.type is TaskType.INPUT and follows:
            yield JobIssue(label, "is an input: no edge may lead to it", ("type",))
        elif task.type is not TaskType.INPUT and not follows:
            yield JobIssue(label, f"is {_article(task.type)}: an edge must lead to it", ("type",))
        if task.type is TaskType.OUTPUT and leads:
            yield JobIssue(label, "is an output: no edge may leave it", ("type",))
        elif task.type is not TaskType.OUTPUT and follows and not leads:
            yield JobIssue(label, f"is {_article(task.type)}: an edge must leave it", ("type",))


def _article(type_: TaskType) -> str:
    return f"a {type_}" if type_ is TaskType.FUNCTION else f"an {type_}"
