"""Calls a task function for many segments and routes the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.functions import Function
from postroad.pipeline.job import Segment
from postroad.pipeline.routing import FlowRouter, RoutingResult, SegmentRoute, route_result
from postroad.pipeline.task_functions import ArrowFunction, AsyncFunction, Results
from postroad.pipeline.task_functions import drop_tracebacks as drop_tracebacks
from postroad.pipeline.task_functions import map_function as map_function
from postroad.pipeline.time_limits import TimeLimit, can_interrupt
from postroad.pipeline.vectorized.acks import Ids, Indexes
from postroad.pipeline.vectorized.isolation import call_isolated


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

    def take_routes(
        self, position: int, routed: RoutingResult | Exception
    ) -> Sequence[SegmentRoute]:
        """Where what was made of one segment goes; nowhere, if it failed."""
        if isinstance(routed, Exception):
            self.failed[position] = routed
            return ()
        if routed.is_from_exception:
            first = len(self.segments)
            self.exceptional.update(range(first, first + len(routed.routes)))
        return routed.routes

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
    router, limit = program.routers[task], program.time_limits[task]
    if program.functions[task] is None and router.is_unconditional:
        return TaskOutput(segments)
    results, raised = call_task(program, task, segments)
    made = route_outputs(router, segments, results, raised, limit)
    drop_tracebacks(*raised.values())
    return made


def call_task(program: CompiledJob, task: str, segments: list[Any]) -> Results:
    """Call the function of a task with each segment, where and as long as it may run."""
    function, limit = program.functions[task], program.time_limits[task]
    if function is None:
        return segments, {}
    is_isolated = program.isolate_functions or not can_interrupt()
    call = call_isolated if is_isolated else call_function
    return call(function, segments, limit)


def call_function(
    function: Function, segments: Sequence[Segment], limit: TimeLimit | None = None
) -> Results:
    """Call a function with segments, in the way that suits it."""
    if isinstance(function, ArrowFunction | AsyncFunction):
        return function.call_batch(segments, limit)
    return map_function(function, segments, limit)


def route_outputs(
    router: FlowRouter,
    segments: Sequence[Segment],
    results: list[Any],
    raised: Mapping[int, Exception],
    limit: TimeLimit | None = None,
) -> TaskOutput:
    """Where the results of a function go: one for each segment, or an exception by position."""
    if not router.is_unconditional:
        return _route_each(router, segments, results, raised, limit)
    types = list(map(type, results))
    segment_count = types.count(dict)
    if segment_count == len(types):
        return TaskOutput(results)
    if not raised and segment_count + types.count(NoneType) == len(types):
        made = TaskOutput([result for result in results if result is not None])
        made.parents = np.flatnonzero([result is not None for result in results])
        return made
    return _route_odd(router, segments, results, raised, types, limit)


def _route_odd(
    router: FlowRouter,
    segments: Sequence[Segment],
    results: list[Any],
    raised: Mapping[int, Exception],
    types: Sequence[type],
    limit: TimeLimit | None,
) -> TaskOutput:
    """Everything goes everywhere: only those that are not one segment need a look."""
    made = TaskOutput([])
    counts = np.ones(len(results), dtype=np.intp)
    # What is made of an exception may go its own ways.
    special: dict[int, tuple[str, ...]] = {}
    start = 0
    odd = [at for at, type_ in enumerate(types) if type_ is not dict]
    outcomes = _route(router, segments, results, raised, odd, limit)
    for position, routed in zip(odd, outcomes, strict=True):
        made.segments += results[start:position]
        start = position + 1
        routes = made.take_routes(position, routed)
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
    limit: TimeLimit | None,
) -> TaskOutput:
    made = TaskOutput([])
    made.targets = []
    counts = np.zeros(len(results), dtype=np.intp)
    outcomes = _route(router, segments, results, raised, range(len(results)), limit)
    for position, routed in enumerate(outcomes):
        routes = made.take_routes(position, routed)
        counts[position] = len(routes)
        for route in routes:
            made.segments.append(route.segment)
            made.targets.append(route.targets)
    made.note_counts(counts)
    return made


def _route(
    router: FlowRouter,
    segments: Sequence[Segment],
    results: Sequence[Any],
    raised: Mapping[int, Exception],
    positions: Sequence[int],
    limit: TimeLimit | None,
) -> Iterator[RoutingResult | Exception]:
    """Where what was made of some segments goes, or what they failed with."""

    def route(position: int) -> RoutingResult:
        result, error = results[position], raised.get(position)
        if result is None and error is None:
            return _NOWHERE
        return route_result(router, segments[position], result, error)

    # Predicates are somebody's functions, too.
    routed, failed = map_function(route, positions, limit if can_interrupt() else None)
    drop_tracebacks(*failed.values())
    return (failed.get(at, outcome) for at, outcome in enumerate(routed))


_NOWHERE = RoutingResult([])
