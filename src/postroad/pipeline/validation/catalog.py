"""The rules of the catalog: what each type and kind of task needs, and what it may not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from postroad.pipeline.job import ALL, NONE, RetryPolicy, Task, TaskKind, TaskType

from .drafts import ParsedJob
from .problems import JobIssue, bad_data, bad_import_path, bad_name, bad_numbers, default_of

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
        yield from _group_problems(label, task)
        yield from _medium_problems(label, task)
        yield from bad_numbers(label, task, ["time_limit_s"])
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
        if task.kind is not TaskKind.SQL and found:
            yield JobIssue(label, f"{key} are for kind 'sql' only", ("kind", key))
        if task.kind is TaskKind.SQL and not found:
            yield JobIssue(label, f"kind 'sql' needs at least one {one}", ("kind", key))
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
        if not task.medium:
            yield JobIssue(label, f"an {task.type} needs a medium", ("medium", "type"))
        return
    if task.medium is not None:
        yield JobIssue(label, "a function has no medium", ("medium", "type"))
    if task.options:
        yield JobIssue(
            label, "options are for a medium, and a function has none", ("options", "type")
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
