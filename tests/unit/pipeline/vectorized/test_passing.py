"""The tasks of a stage, run over a piece."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from postroad.pipeline import FlowCondition, Segment, Window, WindowType
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.vectorized.acks import EdgeBatch
from postroad.pipeline.vectorized.stage_executor import RootBatch, StageExecutor
from postroad.pipeline.vectorized.task_calls import TaskOutput
from tests.support.pipeline.small_jobs import ROOTS, count, piece_of, program_of


class Kept:
    """A sink that writes everything, and keeps all it is given."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int, int]] = []
        """Task, place of the root, and number."""
        self.sent: list[tuple[str, int, int]] = []

    def write_output(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> None:
        parents = range(len(made.segments)) if made.parents is None else made.parents.tolist()
        for parent, segment in zip(parents, made.segments, strict=True):
            self.written.append((task, int(edges.origins[parent]), segment["n"]))
        piece.ledger.mark_processed(edges, list(made.failed))

    def send_downstream(
        self, piece: RootBatch, task: str, edges: EdgeBatch, segments: list[Segment]
    ) -> None:
        for origin, segment in zip(edges.origins.tolist(), segments, strict=True):
            self.sent.append((task, origin, segment["n"]))


def run(program: CompiledJob, piece: RootBatch, entry: str = "in") -> Kept:
    sink = Kept()
    StageExecutor(program, 0, sink).run_roots(piece, entry, count())
    return sink


class Tracked(dict[str, int]):
    """A segment that tells when it is gone."""


def refuse(segment: Segment) -> Segment:
    raise ValueError("no")


def refuse_because(segment: Segment) -> Segment:
    try:
        return refuse(segment)
    except ValueError as error:
        raise RuntimeError("of that") from error


def refuse_late(segment: Segment) -> Iterator[Segment]:
    yield segment
    refuse_because(segment)


def fail_again(error: Exception, segment: Segment) -> Segment:
    raise KeyError("too")


def describe(error: Exception, segment: Segment) -> Segment:
    return {"n": len(str(error))}


def talk_nonsense(segment: Segment) -> list[object]:
    return [segment, 7]


FAILING = [refuse, refuse_because, refuse_late, talk_nonsense]


def twice(segment: Segment) -> list[Segment]:
    return [segment, segment]


def change(segment: Segment) -> Segment:
    segment["n"] += 10
    return segment


def refuse_odd(segment: Segment) -> Segment:
    if segment["n"] % 2:
        raise ValueError("odd")
    return segment


CONDITIONS = [(), (FlowCondition(source="twice", to=["change"]),)]


def test_the_same_object_twice_is_two_segments() -> None:
    for conditions in CONDITIONS:
        edges = [("in", "twice"), ("twice", "change"), ("change", "out")]
        program = program_of(edges, conditions, twice=twice, change=change)
        written = run(program, piece_of(program)).written
        assert sorted(n for _, _, n in written) == [10, 10, 11, 11, 12, 12, 13, 13], conditions


def test_windows_keep_what_is_for_them_and_pass_on_exceptions() -> None:
    window = Window(name="w", task="a", type=WindowType.GLOBAL, aggregation="count")
    catch = FlowCondition(source="a", to=["out"], exceptions=True, short_circuit=True)
    program = program_of([("in", "a"), ("a", "out")], [catch], [window], a=refuse_odd)
    piece = piece_of(program)
    assert run(program, piece).written == [("out", 1, 1), ("out", 3, 3)]
    assert [(place, it.ordinal, it.segment["n"]) for place, it in piece.additions] == [
        (0, 0, 0),
        (2, 0, 2),
    ]
    edges = [program.ack_ids.edge(ROOTS[place], "in", "a", 0) for place in (0, 2)]
    assert [it.edge for _, it in piece.additions] == edges
    assert piece.ledger.unacked() == {}


@pytest.mark.parametrize("transform", [None, fail_again, describe])
@pytest.mark.parametrize("function", FAILING)
def test_failures_keep_no_segments(
    function: Callable[[Segment], object],
    transform: Callable[[Exception, Segment], Segment] | None,
) -> None:
    catch = FlowCondition(
        source="a", to=["out"], exceptions=True, short_circuit=True, post_transform="transform"
    )
    edges = [("in", "a"), ("a", "out")]
    functions = {"a": function} | ({} if transform is None else {"transform": transform})
    program = program_of(edges, [] if transform is None else [catch], [], **functions)
    piece = piece_of(program)
    segments: list[Segment] = [Tracked(n=n) for n in range(len(ROOTS))]
    watched = [weakref.ref(segment) for segment in segments]
    gc.disable()
    try:
        StageExecutor(program, 0, Kept()).run_roots(piece, "in", segments)
        del segments
        assert [ref() for ref in watched] == [None] * len(ROOTS)
    finally:
        gc.enable()
    assert len(piece.failures) == (0 if transform is describe else len(ROOTS))
