"""The rules of the workflow: which task follows which."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator
from itertools import pairwise

from postroad.pipeline.job import Edge, TaskType

from .drafts import ParsedJob
from .problems import JobIssue, nearest, suggestion

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
