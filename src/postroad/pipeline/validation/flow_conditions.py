"""The rules of flow conditions, and of lifecycles, which name tasks in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from postroad.pipeline.job import ALL, NONE, FlowAction, FlowCondition, Predicate, TaskKind
from postroad.pipeline.validation.catalog import corrected_edges, nearest_task
from postroad.pipeline.validation.issues import JobIssue, bad_data, bad_import_path, suggestion
from postroad.pipeline.validation.parsing import ParsedJob

JUNCTIONS = ("and", "or", "not")


def condition_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    """Every condition by itself, then the order of all."""
    for label, condition in draft.conditions:
        yield from _target_words(label, condition)
        yield from _exception_problems(label, condition)
        yield from _predicate_problems(label, condition)
        yield from _excluded_keys(label, condition)
        yield from _kind_problems(draft, label, condition)
        yield from _unknown_names(draft, label, condition)
        yield from _missing_edges(draft, label, condition)
    yield from _order_problems(draft)


def lifecycle_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    """Unknown tasks and things that cannot be hooks."""
    for label, lifecycle in draft.lifecycles:
        yield from bad_import_path(label, "hooks", lifecycle.hooks)
        yield from bad_data(label, "params", lifecycle.params)
        yield from unknown_task(draft, label, "task", lifecycle.task, others=(ALL,))
        if _kinds(draft).get(lifecycle.task) is TaskKind.DATAFRAME:
            text = f"{lifecycle.task!r} is of kind 'dataframe': no worker runs it, nor hooks of it"
            yield JobIssue(label, text, ("task",))


def unknown_task(
    draft: ParsedJob, label: str, key: str, name: str, others: tuple[str, ...] = ()
) -> Iterator[JobIssue]:
    """Report a name that no task has."""
    if "catalog" not in draft.unreadable and name not in (*draft.task_names, *others):
        text = f"{key} {name!r} is not in the catalog"
        yield JobIssue(label, text + suggestion(name, [*draft.task_names, *others]), (key,))


def targets(condition: FlowCondition) -> list[str]:
    """The tasks a condition names; none for `all` and `none`."""
    if condition.to in (ALL, NONE):
        return []
    return [condition.to] if isinstance(condition.to, str) else condition.to


def _kind_problems(draft: ParsedJob, label: str, condition: FlowCondition) -> Iterator[JobIssue]:
    """What needs the segment that something was made of, where nobody knows it any more."""
    kinds = _kinds(draft)
    if kinds.get(condition.source) is TaskKind.GROUP and condition.exceptions:
        text = (
            f"{condition.source!r} is of kind 'group': if it raises, all of the group comes again"
        )
        yield JobIssue(label, text, ("exceptions", "from"))
    if kinds.get(condition.source) is not TaskKind.DATAFRAME:
        return
    whose = f"{condition.source!r} is of kind 'dataframe'"
    if condition.exceptions:
        text = f"{whose}: if it raises, its whole batch comes again"
        yield JobIssue(label, text, ("exceptions", "from"))
    if condition.action is not None:
        text = f"{whose}: its rows do not say which segment would come again"
        yield JobIssue(label, text, ("action", "from"))


def _kinds(draft: ParsedJob) -> dict[str, TaskKind]:
    return {task.name: task.kind for _, task in draft.tasks}


def _target_words(label: str, condition: FlowCondition) -> Iterator[JobIssue]:
    if condition.to in (ALL, NONE) and not condition.short_circuit:
        yield JobIssue(label, f"to {condition.to!r} needs short_circuit", ("to", "short_circuit"))
    named = targets(condition)
    if condition.to == []:
        yield JobIssue(label, f"to is empty; write {NONE!r} if that is meant", ("to",))
    for name in dict.fromkeys(named):
        if name in (ALL, NONE):
            yield JobIssue(label, f"to {name!r} must stand alone, not in a list", ("to",))
        elif named.count(name) > 1:
            yield JobIssue(label, f"to has {name!r} {named.count(name)} times", ("to",))


def _unknown_names(draft: ParsedJob, label: str, condition: FlowCondition) -> Iterator[JobIssue]:
    yield from unknown_task(draft, label, "from", condition.source, others=(ALL,))
    others = (ALL, NONE) if isinstance(condition.to, str) else ()
    for name in targets(condition):
        if name not in (ALL, NONE):
            yield from unknown_task(draft, label, "to", name, others)


def _missing_edges(draft: ParsedJob, label: str, condition: FlowCondition) -> Iterator[JobIssue]:
    """A condition of `all` is about the tasks that have an edge to where it leads."""
    source = condition.source
    if source != ALL:
        source = nearest_task(draft, source)
    if "workflow" in draft.incomplete or source not in (ALL, *draft.task_names):
        return
    followers = {target for origin, target in corrected_edges(draft) if source in (ALL, origin)}
    if condition.to == ALL and not followers:
        yield JobIssue(label, f"to {ALL!r}, but nothing follows {source!r}", ("to", "from"))
    for name in targets(condition):
        if name in draft.task_names and name not in followers:
            yield JobIssue(label, _no_edge(source, name), ("to", "from"))


def _no_edge(source: str, target: str) -> str:
    origin = "any task" if source == ALL else repr(source)
    return f"to {target!r}, but no edge leads there from {origin}"


def _exception_problems(label: str, condition: FlowCondition) -> Iterator[JobIssue]:
    is_short = condition.short_circuit
    if condition.exceptions and not is_short:
        yield JobIssue(label, "exceptions need short_circuit", ("exceptions", "short_circuit"))
    if condition.post_transform is not None and not condition.exceptions:
        text = "post_transform is for exceptions only"
        yield JobIssue(label, text, ("post_transform", "exceptions"))
    yield from bad_import_path(label, "post_transform", condition.post_transform)
    if condition.action is FlowAction.RETRY and not (condition.to == NONE and is_short):
        text = f"action 'retry' needs to {NONE!r} and short_circuit"
        yield JobIssue(label, text, ("action", "to", "short_circuit"))


def _excluded_keys(label: str, condition: FlowCondition) -> Iterator[JobIssue]:
    if "" in condition.exclude_keys:
        yield JobIssue(label, "exclude_keys has an empty key", ("exclude_keys",))


def _predicate_problems(label: str, condition: FlowCondition) -> Iterator[JobIssue]:
    yield from bad_data(label, "params", condition.params)
    if condition.predicate is None:
        if condition.params:
            text = "params without a predicate mean nothing"
            yield JobIssue(label, text, ("params", "predicate"))
        return
    for text in _malformed("predicate", condition.predicate):
        yield JobIssue(label, text, ("predicate",))


def _malformed(path: str, predicate: Predicate | Any) -> Iterator[str]:
    if isinstance(predicate, str):
        yield from (problem.text for problem in bad_import_path("", path, predicate))
    elif not isinstance(predicate, dict):
        yield f"{path}={predicate!r} is neither an import path nor a table"
    elif len(predicate) != 1:
        yield f"{path} needs exactly one key of {', '.join(map(repr, JUNCTIONS))}"
    else:
        ((junction, parts),) = predicate.items()
        yield from _malformed_junction(path, junction, parts)


def _malformed_junction(path: str, junction: Any, parts: Any) -> Iterator[str]:
    if junction not in JUNCTIONS:
        yield f"{path} has the unknown key {junction!r}{suggestion(str(junction), JUNCTIONS)}"
    elif junction == "not":
        yield from _malformed(f"{path}.not", parts)
    elif not isinstance(parts, list) or not parts:
        yield f"{path}.{junction} needs a list of one predicate or more"
    else:
        for number, part in enumerate(parts):
            yield from _malformed(f"{path}.{junction}[{number}]", part)


def _rank(condition: FlowCondition) -> int:
    if condition.to in (ALL, NONE):
        return 0 if condition.to == ALL else 1
    return 2 if condition.short_circuit else 3


_RANKS = ("to 'all'", "to 'none'", "with short_circuit", "without short_circuit")


def _order_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    for source in dict.fromkeys(condition.source for _, condition in draft.conditions):
        applying = [entry for entry in draft.conditions if entry[1].source in (source, ALL)]
        # What is returned and what is raised never meet the same conditions.
        yield from _disorder([entry for entry in applying if not entry[1].exceptions])
        yield from _disorder([entry for entry in applying if entry[1].exceptions])


def _disorder(conditions: list[tuple[str, FlowCondition]]) -> Iterator[JobIssue]:
    highest, first = -1, ""
    for label, condition in conditions:
        rank = _rank(condition)
        if rank < highest:
            text = f"is {_RANKS[rank]} and must come before {first}, which is {_RANKS[highest]}"
            yield JobIssue(label, text, ("to", "short_circuit", "from", "exceptions"))
        elif rank > highest:
            highest, first = rank, label
