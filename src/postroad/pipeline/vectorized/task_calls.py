"""Calls a task function for many segments and routes the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.functions import Function
from postroad.pipeline.job import Segment
from postroad.pipeline.routing import FlowRouter, SegmentRoute, route_result
from postroad.pipeline.task_functions import ArrowFunction
from postroad.pipeline.vectorized.acks import Ids, Indexes
from postroad.pipeline.vectorized.isolation import find_crashing_segments


class TaskOutput:
    """What a task made of some segments.

    Attributes:
        segments: all that it made, those of the same segment together.
        parents: for each, the position of the one it was made of; None if there is one for each.
        ordinals: for each, its place among those made of the same; None if none has others.
        targets: for each, the tasks it is for; None if all go to all that follow.
        exceptional: those of them that were made of an exception.
        failed: what segments failed with, by position.
    """

    __slots__ = ("exceptional", "failed", "ordinals", "parents", "segments", "targets")

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.parents: Indexes | None = None
        self.ordinals: Ids | None = None
        self.targets: list[tuple[str, ...]] | None = None
        self.exceptional: set[int] = set()
        self.failed: dict[int, Exception] = {}

    def note_counts(self, counts: Indexes) -> None:
        """Tell how many were made of each."""
        self.parents = np.repeat(np.arange(len(counts)), counts)
        if counts.size and counts.max() > 1:
            firsts = np.cumsum(counts) - counts
            ordinals = np.arange(len(self.parents)) - np.repeat(firsts, counts)
            self.ordinals = ordinals.astype(np.uint64)

    def select(self, places: list[int]) -> TaskOutput:
        """Some of them, in order."""
        chosen = TaskOutput([self.segments[place] for place in places])
        parents = np.arange(len(self.segments)) if self.parents is None else self.parents
        chosen.parents = parents[places]
        if self.targets is not None:
            chosen.targets = [self.targets[place] for place in places]
        if self.ordinals is not None:
            chosen.ordinals = self.ordinals[places]
        return chosen


def run_task(program: CompiledJob, task: str, segments: list[Segment]) -> TaskOutput:
    """Call the function of a task with each segment, and find out where its results go."""
    function, router = program.functions[task], program.routers[task]
    raised: dict[int, Exception] = {}
    results = segments
    if function is not None:
        call = call_isolated if program.isolate_functions else call_function
        results, raised = call(function, segments)
    made = route_outputs(router, segments, results, raised)
    drop_tracebacks(*raised.values())
    return made


def call_function(
    function: Function, segments: Sequence[Segment]
) -> tuple[list[Any], dict[int, Exception]]:
    """Call a function with segments, in the way that suits it."""
    if isinstance(function, ArrowFunction):
        return function.call_batch(segments)
    return map_function(function, segments)


def call_isolated(
    function: Function, segments: Sequence[Segment]
) -> tuple[list[Any], dict[int, Exception]]:
    """The same, but not with those that it would end this process with."""
    deadly = find_crashing_segments(function, segments)
    if not deadly:
        return call_function(function, segments)
    places = [place for place in range(len(segments)) if place not in deadly]
    made, raised = call_function(function, [segments[place] for place in places])
    results: list[Any] = [None] * len(segments)
    for place, result in zip(places, made, strict=True):
        results[place] = result
    return results, deadly | {places[at]: error for at, error in raised.items()}


def route_outputs(
    router: FlowRouter,
    segments: Sequence[Segment],
    results: list[Any],
    raised: Mapping[int, Exception],
) -> TaskOutput:
    """Find out where what a task made of some segments goes.

    Args:
        router: of the task.
        segments: what its function was called with.
        results: what it returned, one for each.
        raised: what it raised instead, by position.
    """
    if not router.is_unconditional:
        return _route_each(router, segments, results, raised)
    types = list(map(type, results))
    if types.count(dict) == len(types):
        return TaskOutput(results)
    return _route_odd(router, segments, results, raised, types)


def _route_odd(
    router: FlowRouter,
    segments: Sequence[Segment],
    results: list[Any],
    raised: Mapping[int, Exception],
    types: Sequence[type],
) -> TaskOutput:
    """Everything goes everywhere: only those that are not one segment need a look."""
    made = TaskOutput([])
    counts = np.ones(len(results), dtype=np.intp)
    # What is made of an exception may go its own ways.
    special: dict[int, tuple[str, ...]] = {}
    start = 0
    for position in [at for at, type_ in enumerate(types) if type_ is not dict]:
        made.segments += results[start:position]
        start = position + 1
        result, error = results[position], raised.get(position)
        routes: Sequence[SegmentRoute] = ()
        if result is not None or error is not None:
            routes = _route(router, made, position, segments[position], result, error)
        for route in routes:
            if route.targets != router.children:
                special[len(made.segments)] = route.targets
            made.segments.append(route.segment)
        counts[position] = len(routes)
    made.segments += results[start:]
    made.note_counts(counts)
    if special:
        made.targets = [special.get(at, router.children) for at in range(len(made.segments))]
    return made


def _route_each(
    router: FlowRouter,
    segments: Sequence[Segment],
    results: Sequence[Any],
    raised: Mapping[int, Exception],
) -> TaskOutput:
    made = TaskOutput([])
    made.targets = []
    counts = np.zeros(len(results), dtype=np.intp)
    for position, (segment, result) in enumerate(zip(segments, results, strict=True)):
        routes = _route(router, made, position, segment, result, raised.get(position))
        counts[position] = len(routes)
        for route in routes:
            made.segments.append(route.segment)
            made.targets.append(route.targets)
    made.note_counts(counts)
    return made


def _route(
    router: FlowRouter,
    made: TaskOutput,
    position: int,
    segment: Segment,
    result: object,
    error: Exception | None,
) -> Sequence[SegmentRoute]:
    """Where what was made of one segment goes; nowhere, if it failed."""
    try:
        routed = route_result(router, segment, result, error)
    except Exception as failure:
        drop_tracebacks(failure)
        made.failed[position] = failure
        return ()
    if routed.is_from_exception:
        made.exceptional.update(range(len(made.segments), len(made.segments) + len(routed.routes)))
    return routed.routes


def map_function(
    function: Function, segments: Sequence[object]
) -> tuple[list[Any], dict[int, Exception]]:
    """Call a function with each segment, or whatever else it takes.

    Returns:
        What it returned, one for each, and what it raised, by position. Call `forget_frames` with
        these when nobody asks any more where they were raised.
    """
    results: list[Any] = []
    raised: dict[int, Exception] = {}
    for segment in segments:
        # As quick as a loop in C, which would take a StopIteration for its end.
        try:
            results.append(function(segment))
        except Exception as error:
            raised[len(results)] = error
            results.append(None)
    return results, raised


def drop_tracebacks(*errors: BaseException) -> None:
    """Take the tracebacks from exceptions and those behind them: they keep all segments alive."""
    waiting: list[BaseException | None] = list(errors)
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        error.__traceback__ = None
        waiting += (error.__cause__, error.__context__)
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
