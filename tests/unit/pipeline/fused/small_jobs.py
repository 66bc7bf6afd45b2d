"""Small jobs, and pieces of them, for tests of what a pass does."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from postroad.pipeline import FlowCondition, Job, Segment, Task, TaskType, Window
from postroad.pipeline.functions import Function
from postroad.pipeline.fused.passing import Piece
from postroad.pipeline.program import Program

ROOTS = (11, 22, 2**63, 2**64 - 1)


def program_of(
    workflow: list[tuple[str, str]],
    conditions: Iterable[FlowCondition] = (),
    windows: Iterable[Window] = (),
    **functions: Function,
) -> Program:
    """A job whose tasks are called `in...`, `out...`, and others; some with a function."""
    names = dict.fromkeys(name for edge in workflow for name in edge)
    catalog = [_task(name, name if name in functions else None) for name in names]
    job = Job(
        name="job",
        workflow=workflow,
        catalog=catalog,
        flow_conditions=list(conditions),
        windows=list(windows),
    )
    return Program(job, functions.__getitem__)


def _task(name: str, fn: str | None) -> Task:
    if name.startswith("in"):
        return Task(name=name, type=TaskType.INPUT, medium="seq", fn=fn)
    if name.startswith("out"):
        return Task(name=name, type=TaskType.OUTPUT, medium="seq", fn=fn)
    return Task(name=name, type=TaskType.FUNCTION, fn=fn)


def piece_of(program: Program, generation: int = 0) -> Piece:
    return Piece(program, np.array(ROOTS, dtype=np.uint64), generation)


def count() -> list[Segment]:
    """A segment for each root."""
    return [{"n": n} for n in range(len(ROOTS))]
