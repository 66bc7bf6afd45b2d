"""What a task makes of many segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from postroad.pipeline.arrow_tasks import ArrowTask
from postroad.pipeline.flow import Route, Router
from postroad.pipeline.functions import Function
from postroad.pipeline.job import Segment
from postroad.pipeline.outcomes import to_routes
from postroad.pipeline.program import Program

from .calls import call_all, forget_frames
from .careful import find_deadly
from .ids import Ids, Indexes


class Made:
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

    def only(self, places: list[int]) -> Made:
        """Some of them, in order."""
        chosen = Made([self.segments[place] for place in places])
        parents = np.arange(len(self.segments)) if self.parents is None else self.parents
        chosen.parents = parents[places]
        if self.targets is not None:
            chosen.targets = [self.targets[place] for place in places]
        if self.ordinals is not None:
            chosen.ordinals = self.ordinals[places]
        return chosen


def make(program: Program, task: str, segments: list[Segment]) -> Made:
    """Call the function of a task with each segment, and find out where its results go."""
    function, router = program.functions[task], program.routers[task]
    raised: dict[int, Exception] = {}
    results = segments
    if function is not None:
        call = call_carefully if program.is_careful else call_some
        results, raised = call(function, segments)
    made = route_all(router, segments, results, raised)
    forget_frames(*raised.values())
    return made


def call_some(
    function: Function, segments: Sequence[Segment]
) -> tuple[list[Any], dict[int, Exception]]:
    """Call a function with segments, in the way that suits it."""
    if isinstance(function, ArrowTask):
        return function.call_all(segments)
    return call_all(function, segments)


def call_carefully(
    function: Function, segments: Sequence[Segment]
) -> tuple[list[Any], dict[int, Exception]]:
    """The same, but not with those that it would end this process with."""
    deadly = find_deadly(function, segments)
    if not deadly:
        return call_some(function, segments)
    places = [place for place in range(len(segments)) if place not in deadly]
    made, raised = call_some(function, [segments[place] for place in places])
    results: list[Any] = [None] * len(segments)
    for place, result in zip(places, made, strict=True):
        results[place] = result
    return results, deadly | {places[at]: error for at, error in raised.items()}


def route_all(
    router: Router,
    segments: Sequence[Segment],
    results: list[Any],
    raised: Mapping[int, Exception],
) -> Made:
    """Find out where what a task made of some segments goes.

    Args:
        router: of the task.
        segments: what its function was called with.
        results: what it returned, one for each.
        raised: what it raised instead, by position.
    """
    if not router.is_plain:
        return _route_each(router, segments, results, raised)
    types = list(map(type, results))
    if types.count(dict) == len(types):
        return Made(results)
    return _route_odd(router, segments, results, raised, types)


def _route_odd(
    router: Router,
    segments: Sequence[Segment],
    results: list[Any],
    raised: Mapping[int, Exception],
    types: Sequence[type],
) -> Made:
    """Everything goes everywhere: only those that are not one segment need a look."""
    made = Made([])
    counts = np.ones(len(results), dtype=np.intp)
    # What is made of an exception may go its own ways.
    special: dict[int, tuple[str, ...]] = {}
    start = 0
    for position in [at for at, type_ in enumerate(types) if type_ is not dict]:
        made.segments += results[start:position]
        start = position + 1
        result, error = results[position], raised.get(position)
        routes: Sequence[Route] = ()
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
    router: Router,
    segments: Sequence[Segment],
    results: Sequence[Any],
    raised: Mapping[int, Exception],
) -> Made:
    made = Made([])
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
    router: Router,
    made: Made,
    position: int,
    segment: Segment,
    result: object,
    error: Exception | None,
) -> Sequence[Route]:
    """Where what was made of one segment goes; nowhere, if it failed."""
    try:
        routed = to_routes(router, segment, result, error)
    except Exception as failure:
        forget_frames(failure)
        made.failed[position] = failure
        return ()
    if routed.is_exceptional:
        made.exceptional.update(range(len(made.segments), len(made.segments) + len(routed.routes)))
    return routed.routes
