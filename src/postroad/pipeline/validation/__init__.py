"""What is wrong with a job: every mistake at once, each with its place. Pure.

A job is read entry by entry (`drafts`, `entries`), then the rules look at what could be read:
`catalog`, `workflow`, `routing` and `windows`, one module for each part of a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from postroad.core.errors import InvalidJobError
from postroad.pipeline.job import Job
from postroad.pipeline.validation.catalog import catalog_problems, workflow_problems
from postroad.pipeline.validation.flow_conditions import condition_problems, lifecycle_problems
from postroad.pipeline.validation.issues import JobIssue, bad_data, is_local_function
from postroad.pipeline.validation.parsing import JOB, ParsedJob
from postroad.pipeline.validation.windows import trigger_problems, window_problems

__all__ = ["JobIssue", "find_problems", "require_valid"]

_JOB_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def find_problems(job: Job | Mapping[str, Any]) -> list[JobIssue]:
    """Every mistake in a job, or in data that is to be one; none if it is valid."""
    return _problems_of(ParsedJob(job))


def require_valid(job: Job | Mapping[str, Any]) -> Job:
    """The job that the data says; raises InvalidJobError with every problem there is."""
    draft = ParsedJob(job)
    problems = _problems_of(draft)
    if problems:
        raise InvalidJobError(_told(draft, problems), problems)
    return draft.to_job()


def _problems_of(draft: ParsedJob) -> list[JobIssue]:
    found = list(draft.notes.problems)
    for rule, section in _RULES:
        if section not in draft.unreadable:
            found += [issue for issue in rule(draft) if not draft.notes.has_doubts_about(issue)]
    by_entry: dict[str, dict[JobIssue, None]] = {}
    for problem in found:
        by_entry.setdefault(problem.entry, {})[problem] = None
    return [problem for problems in by_entry.values() for problem in problems]


def _job_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    if isinstance(draft.name, str) and not _JOB_NAME.fullmatch(draft.name):
        text = f"name {draft.name!r} must be 1 to 64 letters, digits, dots, dashes or underscores"
        yield JobIssue(JOB, text, ("name",))
    if draft.metadata is not msgspec.UNSET:
        yield from bad_data(JOB, "metadata", draft.metadata)


# Keys with the name of a function, or with predicates put together of some.
_FUNCTION_KEYS = ("fn", "predicate", "post_transform", "aggregation", "emit", "hooks")


def _local_function_problems(draft: ParsedJob) -> Iterator[JobIssue]:
    """Functions that the job does not have with it, and what it has that is none."""
    known = {} if draft.functions is msgspec.UNSET else draft.functions
    for name, function in known.items():
        if not callable(function):
            text = f"functions.{name}={function!r} is not a function: no file can have any"
            yield JobIssue(JOB, text, ("functions",))
    entries = (draft.tasks, draft.conditions, draft.windows, draft.triggers, draft.lifecycles)
    for label, entry in chain.from_iterable(entries):
        for key in _FUNCTION_KEYS:
            for name in _names_in(getattr(entry, key, None)):
                if is_local_function(name) and name not in known:
                    text = f"{key} {name!r} was a function of the program that made the job"
                    yield JobIssue(label, f"{text}; name one that can be imported", (key,))


def _names_in(value: Any) -> Iterator[str]:
    """The functions that a value names, wherever they are in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _names_in(item)


def _told(draft: ParsedJob, problems: list[JobIssue]) -> str:
    job = f"job {draft.name!r}" if isinstance(draft.name, str) else "the job"
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return "\n  ".join([f"{job} has {count}:", *map(str, problems)])


# Rules, and the section they are about: without it there is nothing to say.
_RULES: tuple[tuple[Callable[[ParsedJob], Iterator[JobIssue]], str], ...] = (
    (_job_problems, ""),
    (_local_function_problems, ""),
    (catalog_problems, "catalog"),
    (workflow_problems, "workflow"),
    (condition_problems, "flow_conditions"),
    (window_problems, "windows"),
    (trigger_problems, "triggers"),
    (lifecycle_problems, "lifecycles"),
)
