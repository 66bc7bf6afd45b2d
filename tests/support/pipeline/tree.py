"""One root with everything that is made of it, in plain Python, one function call after the other.

This is how a job is meant: the pass, which does it for many roots at a time, is compared with it.
"""

from __future__ import annotations

from typing import NamedTuple

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import decode_any, encode_segment
from postroad.pipeline.functions import Function
from postroad.pipeline.job import Segment
from postroad.pipeline.routing import SegmentRoute, route_result
from postroad.pipeline.vectorized.stage_executor import WindowInput, group_key
from tests.support.pipeline.acker import AckReport, ack_root, ack_task, fail_task


class OutputSegment(NamedTuple):
    """A segment for an output task."""

    task: str
    edge: int
    """The edge it came along."""
    id: int
    """The same in every delivery of its root: whoever has it already can tell."""
    segment: Segment


class TaskFailure(NamedTuple):
    """A segment whose function raised, and nothing said what to do then."""

    task: str
    edge: int
    segment: Segment
    error: Exception


class SegmentTree:
    """What came of one delivery of a root.

    Attributes:
        reports: what became of every segment except those for outputs: they are done with when
            they are written.
    """

    def __init__(self, root: int, generation: int) -> None:
        self.root = root
        self.generation = generation
        self.outputs: list[OutputSegment] = []
        self.additions: list[WindowInput] = []
        self.failures: list[TaskFailure] = []
        self.reports: list[AckReport] = []

    def report_written(self, task: str, edge: int) -> AckReport:
        """The outputs that came along an edge are written."""
        return ack_task(self.root, self.generation, task, edge, ())

    def report_unwritten(self, output: OutputSegment, reason: str) -> AckReport:
        """One of them cannot be."""
        error = TypeError(f"it cannot be written: {reason}")
        self.failures.append(TaskFailure(output.task, output.edge, output.segment, error))
        return fail_task(self.root, self.generation, output.task, output.edge)


def execute_tree(
    program: CompiledJob, entry: str, root: int, generation: int, segment: Segment
) -> SegmentTree:
    """Run the functions of a job on a root and all that is made of it."""
    grower = _TreeExecutor(program, SegmentTree(root, generation))
    grower.enter(entry, segment)
    while grower.waiting:
        grower.work(*grower.waiting.pop())
    return grower.tree


class _TreeExecutor:
    def __init__(self, program: CompiledJob, tree: SegmentTree) -> None:
        self._program = program
        self.tree = tree
        # Segments on their way, with the task they are for and the edge they come along.
        self.waiting: list[tuple[str, int, Segment]] = []
        # Whether what the last call made was made of an exception.
        self._is_exceptional = False

    def enter(self, task: str, segment: Segment) -> None:
        """The root comes in by a task; what a trigger emitted, by the one that has the window."""
        tree = self.tree
        if task in self._program.windowed_tasks:
            given = self._give(task, tree.root, self._route(task, tree.root, segment))
        else:
            given = self._send(task, tree.root, segment)
        if given is None:
            failed = fail_task(tree.root, tree.generation, task, tree.root)
            tree.reports.append(failed._replace(is_init=True, consumed=0))
        else:
            tree.reports.append(ack_root(tree.root, tree.generation, task, given))

    def work(self, task: str, edge: int, segment: Segment) -> None:
        """Have a task take a segment."""
        tree = self.tree
        if self._program.graph.tasks[task].group_by is not None:
            try:
                segment = decode_any(encode_segment(segment))
            except Exception as error:
                tree.failures.append(TaskFailure(task, edge, segment, error.with_traceback(None)))
                tree.reports.append(fail_task(tree.root, tree.generation, task, edge))
                return
        if task in self._program.graph.outputs:
            self._put_out(task, edge, segment)
            return
        given = self._send(task, edge, segment)
        if given is None:
            tree.reports.append(fail_task(tree.root, tree.generation, task, edge))
        else:
            tree.reports.append(ack_task(tree.root, tree.generation, task, edge, given))

    def _put_out(self, task: str, edge: int, segment: Segment) -> None:
        made = self._call(task, edge, segment)
        if made is None:
            tree = self.tree
            tree.reports.append(fail_task(tree.root, tree.generation, task, edge))
            return
        for ordinal, route in enumerate(made):
            id = self._program.ack_ids.edge(edge, task, task, ordinal)
            self.tree.outputs.append(OutputSegment(task, edge, id, route.segment))
        if not made:
            self.tree.reports.append(self.tree.report_written(task, edge))

    def _send(self, task: str, edge: int, segment: Segment) -> list[int] | None:
        """Call a task's function and send on what it made: the edges; None if it failed."""
        is_windowed = task in self._program.windowed_tasks
        # Before its function may change it.
        keys = self._program.graph.tasks[task].group_by if is_windowed else None
        group = group_key(keys, segment)
        made = self._call(task, edge, segment)
        if made is None:
            return None
        if is_windowed and not self._is_exceptional:
            for ordinal, route in enumerate(made):
                self.tree.additions.append(WindowInput(task, edge, ordinal, group, route.segment))
            return []
        return self._give(task, edge, made)

    def _give(self, task: str, edge: int, made: list[SegmentRoute] | None) -> list[int] | None:
        if made is None:
            return None
        given: list[int] = []
        sent: set[int] = set()
        for ordinal, route in enumerate(made):
            for target in route.targets:
                edge_there = self._program.ack_ids.edge(edge, task, target, ordinal)
                given.append(edge_there)
                # Each has its own: a function may change what it is given.
                is_new = id(route.segment) not in sent
                sent.add(id(route.segment))
                segment = route.segment if is_new else dict(route.segment)
                self.waiting.append((target, edge_there, segment))
        return given

    def _call(self, task: str, edge: int, segment: Segment) -> list[SegmentRoute] | None:
        """What a task makes of a segment, with where that goes; None if it failed."""
        return self._route(task, edge, segment, self._program.functions[task])

    def _route(
        self, task: str, edge: int, segment: Segment, function: Function | None = None
    ) -> list[SegmentRoute] | None:
        self._is_exceptional = False
        result: object = segment
        raised = None
        try:
            if function is not None:
                result = function(segment)
        except Exception as error:
            raised = error
        try:
            made = route_result(self._program.routers[task], segment, result, raised)
        except Exception as error:
            self.tree.failures.append(TaskFailure(task, edge, segment, error.with_traceback(None)))
            return None
        self._is_exceptional = made.is_from_exception
        return made.routes
