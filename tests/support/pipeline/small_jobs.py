"""Small jobs, and pieces of them, for tests of what a pass does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from postroad.pipeline import FlowCondition, Job, Segment, Task, TaskType, Window
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.functions import Function
from postroad.pipeline.vectorized.stage_executor import RootBatch

ROOTS = (11, 22, 2**63, 2**64 - 1)


def program_of(
    workflow: list[tuple[str, str]],
    conditions: Iterable[FlowCondition] = (),
    windows: Iterable[Window] = (),
    **functions: Function,
) -> CompiledJob:
    """A job whose tasks are called `in...`, `out...`, and others; some with a function."""
    return _program_of(workflow, conditions, windows, {}, functions)


def grouped_program_of(
    workflow: list[tuple[str, str]],
    *,
    groups: Mapping[str, str | list[str]],
    windows: Iterable[Window] = (),
    **functions: Any,
) -> CompiledJob:
    """Such a job, of which some tasks are grouped by something."""
    return _program_of(workflow, (), windows, groups, functions)


def _program_of(
    workflow: list[tuple[str, str]],
    conditions: Iterable[FlowCondition],
    windows: Iterable[Window],
    groups: Mapping[str, str | list[str]],
    functions: Mapping[str, Function],
) -> CompiledJob:
    names = dict.fromkeys(name for edge in workflow for name in edge)
    job = Job(
        name="job",
        workflow=workflow,
        catalog=[
            _task(name, name if name in functions else None, groups.get(name)) for name in names
        ],
        flow_conditions=list(conditions),
        windows=list(windows),
    )
    return CompiledJob(job, functions.__getitem__)


def _task(name: str, fn: str | None, group_by: str | list[str] | None) -> Task:
    if name.startswith("in"):
        return Task(name=name, type=TaskType.INPUT, connector="memory", fn=fn)
    if name.startswith("out"):
        return Task(name=name, type=TaskType.OUTPUT, connector="memory", fn=fn, group_by=group_by)
    return Task(name=name, type=TaskType.FUNCTION, fn=fn, group_by=group_by)


def piece_of(program: CompiledJob, generation: int = 0) -> RootBatch:
    return RootBatch(program, np.array(ROOTS, dtype=np.uint64), generation)


def count() -> list[Segment]:
    """A segment for each root."""
    return [{"n": n} for n in range(len(ROOTS))]
