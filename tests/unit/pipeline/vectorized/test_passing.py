"""The tasks of a stage, run over a piece."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from postroad.pipeline import FlowCondition, Job, Segment, Task, TaskType, Window, WindowType
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


def twice(segment: Segment) -> list[Segment]:
    return [segment, segment]


def change(segment: Segment) -> Segment:
    segment["n"] += 10
    return segment


def refuse_odd(segment: Segment) -> Segment:
    if segment["n"] % 2:
        raise ValueError("odd")
    return segment


def test_a_diamond_comes_together() -> None:
    for generation in (0, 4):
        edges = [("in", "a"), ("in", "b"), ("a", "c"), ("b", "c"), ("c", "out")]
        program = program_of(edges, a=twice, b=change)
        piece = piece_of(program, generation)
        written = sorted(run(program, piece).written)
        assert written == sorted(
            ("out", place, n) for place in range(len(ROOTS)) for n in (place, place, place + 10)
        ), generation
        assert piece.ledger.unacked() == {}, generation


def test_each_that_follows_has_its_own() -> None:
    program = program_of([("in", "a"), ("in", "out"), ("a", "out_b")], a=change)
    written = run(program, piece_of(program)).written
    assert sorted(n for task, _, n in written if task == "out") == [0, 1, 2, 3]
    assert sorted(n for task, _, n in written if task == "out_b") == [10, 11, 12, 13]


CONDITIONS = [(), (FlowCondition(source="twice", to=["change"]),)]


def test_the_same_object_twice_is_two_segments() -> None:
    for conditions in CONDITIONS:
        edges = [("in", "twice"), ("twice", "change"), ("change", "out")]
        program = program_of(edges, conditions, twice=twice, change=change)
        written = run(program, piece_of(program)).written
        assert sorted(n for _, _, n in written) == [10, 10, 11, 11, 12, 12, 13, 13], conditions


def test_what_is_routed_has_its_own_edges() -> None:
    edges = [("in", "twice"), ("twice", "out"), ("twice", "out_b")]
    condition = FlowCondition(source="twice", to=["out_b"])
    program = program_of(edges, [condition], twice=twice)
    piece, ids = piece_of(program), []

    class Noting(Kept):
        def write_output(
            self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput
        ) -> None:
            ids.extend(edges.ids.tolist())
            super().write_output(piece, task, edges, made)

    StageExecutor(program, 0, Noting()).run_roots(piece, "in", count())
    taken = [program.ack_ids.edge(root, "in", "twice", 0) for root in ROOTS]
    assert ids == [
        program.ack_ids.edge(edge, "twice", "out_b", ordinal)
        for edge in taken
        for ordinal in (0, 1)
    ]


def test_what_failed_is_left_over() -> None:
    program = program_of([("in", "a"), ("in", "out_b"), ("a", "out")], a=refuse_odd)
    piece = piece_of(program)
    written = run(program, piece).written
    assert sorted(place for task, place, _ in written if task == "out") == [0, 2]
    assert sorted(place for task, place, _ in written if task == "out_b") == [0, 1, 2, 3]
    assert [(it.origin, it.task, repr(it.error)) for it in piece.failures] == [
        (1, "a", "ValueError('odd')"),
        (3, "a", "ValueError('odd')"),
    ]
    assert {place: it.missing for place, it in piece.ledger.unacked().items()} == {1: 1, 3: 1}


def test_an_input_that_fails_leaves_nothing_over_but_has_failed() -> None:
    program = program_of([("in_", "out")], in_=refuse_odd)
    piece = piece_of(program)
    assert [place for _, place, _ in run(program, piece, "in_").written] == [0, 2]
    assert [it.origin for it in piece.failures] == [1, 3]
    assert piece.ledger.unacked() == {}


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


def test_what_is_for_a_later_stage_is_sent_and_left_over() -> None:
    catalog = [
        Task(name="in", type=TaskType.INPUT, connector="memory"),
        Task(name="sum", type=TaskType.FUNCTION, fn="sum", group_by="n"),
        Task(name="out", type=TaskType.OUTPUT, connector="memory"),
    ]
    edges = [("in", "sum"), ("sum", "out"), ("in", "out")]
    job = Job(name="job", workflow=edges, catalog=catalog)
    program = CompiledJob(job, {"sum": change}.__getitem__)
    piece = piece_of(program)
    sink = run(program, piece)
    # Also the output runs there, where all that is for it is.
    assert sorted(sink.sent) == [(name, n, n) for name in ("out", "sum") for n in range(4)]
    assert not sink.written
    assert {it.missing for it in piece.ledger.unacked().values()} == {2}


def test_segments_arrive_from_another_pass() -> None:
    catalog = [
        Task(name="in", type=TaskType.INPUT, connector="memory"),
        Task(name="sum", type=TaskType.FUNCTION, fn="sum", group_by="n"),
        Task(name="out", type=TaskType.OUTPUT, connector="memory"),
    ]
    job = Job(name="job", workflow=[("in", "sum"), ("sum", "out")], catalog=catalog)
    program = CompiledJob(job, {"sum": refuse_odd}.__getitem__)
    first, second = piece_of(program), piece_of(program)
    given = first.ledger.add_sent(first.ledger.add_roots(), "in", "sum")
    edges = second.ledger.add_received(given.ids, given.origins)
    sink = Kept()
    StageExecutor(program, 1, sink).run_received(second, "sum", edges, count())
    assert sink.written == [("out", 0, 0), ("out", 2, 2)]
    left, made_up = first.ledger.unacked(), second.ledger.unacked()
    assert {place for place in left if left[place].bits != made_up.get(place, (0, 0))[0]} == {1, 3}
    assert [it.origin for it in second.failures] == [1, 3]


# What failed keeps no segments.


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
