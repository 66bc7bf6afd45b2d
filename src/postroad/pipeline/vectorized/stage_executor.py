"""The tasks between two shuffles, run as one pass over a piece: some roots, or parts of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.progress import TaskCounts, add_counts
from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.acks import AckAccumulator, EdgeBatch, Ids, Indexes
from postroad.pipeline.vectorized.groups import find_unfit
from postroad.pipeline.vectorized.task_calls import TaskOutput, route_outputs, run_task


class SegmentFailure(NamedTuple):
    """A segment that failed."""

    origin: int
    """Which root of the piece it belongs to."""
    task: str
    error: Exception


class WindowInput(NamedTuple):
    """A segment that is added to the windows of a task."""

    task: str
    edge: int
    ordinal: int
    group: object
    segment: Segment

    @property
    def order(self) -> bytes:
        """What decides which of several comes first, in whatever order they were made."""
        return self.edge.to_bytes(8, "big") + self.ordinal.to_bytes(4, "big")


def group_key(keys: str | list[str] | None, segment: Segment) -> object:
    """What decides which segments meet; a key that is not there counts as nothing."""
    if keys is None or isinstance(keys, str):
        return None if keys is None else segment.get(keys)
    return tuple(segment.get(key) for key in keys)


class RootBatch:
    """What is worked on at a time.

    Attributes:
        roots: ids.
        generation: how often they were delivered before.
        ledger: counts.
        failures: what failed.
        additions: what is added to windows, each with the root of the piece it belongs to.
        is_for_output: whether its roots were made for an output, and come in by that.
        published: for some roots, by their places, the ids of outputs that are written already.
    """

    def __init__(
        self,
        program: CompiledJob,
        roots: Ids,
        generation: int,
        published: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.roots = roots
        self.generation = generation
        self.published = published or {}
        self.ledger = AckAccumulator(program.ack_ids, roots, generation)
        self.is_for_output = False
        self.failures: list[SegmentFailure] = []
        self.additions: list[tuple[int, WindowInput]] = []

    def output_ids(self, edges: EdgeBatch, task: str, made: TaskOutput) -> Ids:
        """The ids of what an output task made of what came along some edges."""
        if self.is_for_output:
            return self.roots
        return self.ledger.make_ids(edges, task, task, made.parents, made.ordinals)


class StageSink(Protocol):
    """Where a pass leaves what is not for its own tasks."""

    def write_output(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> None:
        """Take what an output task made of what came along some edges."""

    def send_downstream(
        self, piece: RootBatch, task: str, edges: EdgeBatch, segments: list[Segment]
    ) -> None:
        """Take segments for a task of a later stage."""


Waiting: TypeAlias = dict[str, list[tuple[EdgeBatch, list[Segment]]]]
"""What is on its way to tasks of the pass."""
Given: TypeAlias = tuple[str, EdgeBatch, list[Segment]]
"""What goes on, and where to."""
Results: TypeAlias = tuple[list[Any], dict[int, Exception]]
"""What a function returned for each of some segments, and what it raised, by position."""


class StageExecutor:
    """Runs one stage of a job.

    Attributes:
        counts: what its tasks did.
    """

    def __init__(self, program: CompiledJob, stage: int, sink: StageSink) -> None:
        self._program = program
        self._tasks = program.graph.stages[stage].tasks
        self._here = frozenset(self._tasks)
        self._outputs = frozenset(program.graph.outputs)
        self._sink = sink
        self.counts: dict[str, TaskCounts] = {}

    def run_roots(self, piece: RootBatch, task: str, segments: list[Segment]) -> None:
        """The roots of a piece come in by a task; what was emitted, by the one with the window."""
        edges = piece.ledger.add_roots()
        if task not in self._program.windowed_tasks and task not in self._outputs:
            self._run(piece, {task: [(edges, segments)]})
            return
        made = route_outputs(self._program.routers[task], segments, segments, {})
        self._note_failures(piece, task, edges, made)
        if task in self._outputs:
            # What was made for an output, and refused there, comes again under its own id.
            piece.is_for_output = True
            self._sink.write_output(piece, task, edges, made)
            return
        waiting: Waiting = {}
        self._pass_on(piece, waiting, self._give(piece, task, edges, made))
        self._run(piece, waiting)

    def run_received(
        self,
        piece: RootBatch,
        task: str,
        edges: EdgeBatch,
        segments: list[Segment],
        results: Results | None = None,
    ) -> None:
        """Take segments that an earlier stage sent to a task, with results that Spark computed."""
        waiting: Waiting = {}
        self._pass_on(piece, waiting, self._work(piece, task, edges, segments, results))
        self._run(piece, waiting)

    def _run(self, piece: RootBatch, waiting: Waiting) -> None:
        for task in self._tasks:
            parts = waiting.pop(task, None)
            if parts is None:
                continue
            edges, segments = parts[0]
            if len(parts) > 1:
                edges = piece.ledger.concat([part for part, _ in parts])
                segments = [segment for _, part in parts for segment in part]
            self._pass_on(piece, waiting, self._work(piece, task, edges, segments))

    def _pass_on(self, piece: RootBatch, waiting: Waiting, given: list[Given]) -> None:
        for target, edges, segments in given:
            if target in self._here:
                waiting.setdefault(target, []).append((edges, segments))
            else:
                self._sink.send_downstream(piece, target, edges, segments)

    def _work(
        self,
        piece: RootBatch,
        task: str,
        edges: EdgeBatch,
        segments: list[Segment],
        results: Results | None = None,
    ) -> list[Given]:
        """Have a task take segments; returns what goes on, and where to."""
        is_windowed = task in self._program.windowed_tasks
        # Before its function may change them.
        keys = self._program.graph.tasks[task].group_by
        groups = [group_key(keys, segment) for segment in segments] if is_windowed else []
        if task in self._program.gathering_tasks:
            self._gather(piece, task, edges, segments, groups)
            return []
        failures, began_s = len(piece.failures), time.perf_counter()
        if results is None:
            made = run_task(self._program, task, segments)
        else:
            made = route_outputs(self._program.routers[task], segments, *results)
        self._note_failures(piece, task, edges, made)
        if task in self._outputs:
            self._sink.write_output(piece, task, edges, made)
        failed, seconds = len(piece.failures) - failures, time.perf_counter() - began_s
        add_counts(self.counts, {task: TaskCounts(len(segments), failed, seconds)})
        if task in self._outputs:
            return []
        piece.ledger.mark_processed(edges, list(made.failed))
        if is_windowed:
            made = _add(piece, task, edges, groups, made)
        return self._give(piece, task, edges, made)

    def _gather(
        self,
        piece: RootBatch,
        task: str,
        edges: EdgeBatch,
        segments: list[Segment],
        groups: list[object],
    ) -> None:
        """Keep segments for a function that is called when all of the batch is known."""
        unfit = find_unfit(self._program, task, segments, groups)
        piece.ledger.mark_processed(edges, sorted(unfit))
        ids, origins = edges.ids.tolist(), edges.origins.tolist()
        for place, segment in enumerate(segments):
            if place in unfit:
                piece.failures.append(SegmentFailure(origins[place], task, unfit[place]))
            else:
                added = WindowInput(task, ids[place], 0, groups[place], segment)
                piece.additions.append((origins[place], added))

    def _note_failures(
        self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput
    ) -> None:
        for position, error in made.failed.items():
            piece.failures.append(SegmentFailure(int(edges.origins[position]), task, error))

    def _give(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> list[Given]:
        given = []
        children = self._program.graph.children[task]
        if made.targets is None:
            for place, target in enumerate(children):
                along = piece.ledger.add_sent(edges, task, target, made.parents, made.ordinals)
                # Each has its own: a function may change what it is given.
                copies = list(map(dict, made.segments)) if place else _copy_duplicates(made)
                given.append((target, along, copies))
            return given
        parents, ordinals = made.parents, made.ordinals
        assert parents is not None
        for target, places, sent in _group_by_target(
            children, made.targets, parents, made.segments
        ):
            along = piece.ledger.add_sent(
                edges, task, target, parents[places], None if ordinals is None else ordinals[places]
            )
            given.append((target, along, sent))
        return given


def _copy_duplicates(made: TaskOutput) -> list[Segment]:
    """All that was made, no object twice: what one task makes of it must not change another."""
    segments = made.segments
    if made.ordinals is None or len(set(map(id, segments))) == len(segments):
        return segments
    sent: set[int] = set()
    copies = []
    for segment in segments:
        copies.append(dict(segment) if id(segment) in sent else segment)
        sent.add(id(segment))
    return copies


def _group_by_target(
    children: Sequence[str],
    targets: Sequence[tuple[str, ...]],
    parents: Indexes,
    segments: Sequence[Segment],
) -> list[tuple[str, list[int], list[Segment]]]:
    """What goes to each child: which ones, and their segments, a copy for all but the first."""
    chosen: dict[str, tuple[list[int], list[Segment]]] = {name: ([], []) for name in children}
    # Also a function may return the same object twice.
    sent: set[tuple[int, int]] = set()
    for place, parent in enumerate(parents.tolist()):
        segment = segments[place]
        for name in targets[place]:
            places, copies = chosen[name]
            places.append(place)
            key = (parent, id(segment))
            copies.append(dict(segment) if key in sent else segment)
            sent.add(key)
    return [(name, places, copies) for name, (places, copies) in chosen.items() if places]


def _add(
    piece: RootBatch, task: str, edges: EdgeBatch, groups: list[object], made: TaskOutput
) -> TaskOutput:
    """Add to windows what is no exception; returns what is one."""
    parents = range(len(made.segments)) if made.parents is None else made.parents.tolist()
    ordinals = [0] * len(made.segments) if made.ordinals is None else made.ordinals.tolist()
    for place, segment in enumerate(made.segments):
        if place in made.exceptional:
            continue
        parent = parents[place]
        added = WindowInput(task, int(edges.ids[parent]), ordinals[place], groups[parent], segment)
        piece.additions.append((int(edges.origins[parent]), added))
    return made.select(sorted(made.exceptional))
