"""What a pass writes to outputs by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from postroad.pipeline import OutputConnector, Segment
from postroad.pipeline.acks import AckIds
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors import Committable, OutputWriter
from postroad.pipeline.connectors.connector import UnwritableSegmentsError
from postroad.pipeline.vectorized.output_sink import OutputSink
from postroad.pipeline.vectorized.stage_executor import RootBatch
from postroad.pipeline.vectorized.task_calls import run_task
from tests.support.pipeline.both_ways import Kept, tell
from tests.support.pipeline.small_jobs import ROOTS, count, piece_of, program_of


def put_out(sink: OutputSink, program: CompiledJob) -> RootBatch:
    """Give an output a segment of each root."""
    piece = piece_of(program)
    edges = piece.ledger.add_sent(piece.ledger.add_roots(), "in", "out")
    sink.write_output(piece, "out", edges, run_task(program, "out", count()))
    return piece


def one_each() -> CompiledJob:
    return program_of([("in", "out")])


BITS = AckIds("job")


EDGES = [BITS.edge(root, "in", "out", 0) for root in ROOTS]


def output_id(place: int, ordinal: int = 0) -> int:
    return BITS.edge(EDGES[place], "out", "out", ordinal)


def is_two(segment: Segment) -> bool:
    return bool(segment["n"] == 2)


def is_odd(segment: Segment) -> bool:
    return bool(segment["n"] % 2)


def two_each() -> CompiledJob:
    return program_of([("in", "out")], out=lambda it: [it, {"n": it["n"] + 1}])


def test_what_cannot_be_written_has_failed_and_the_rest_is_written() -> None:
    for at_once in (1, 100):
        output = Kept(is_odd, at_once)
        sink = OutputSink("job", "part", {"out": output})
        piece = put_out(sink, one_each())
        assert sorted(output.written) == sorted((output_id(n), tell({"n": n})) for n in (0, 2)), (
            at_once
        )
        assert [(it.origin, it.task, repr(it.error)) for it in piece.failures] == [
            (n, "out", f"TypeError('it cannot be written: {output_id(n)} is refused')")
            for n in (1, 3)
        ], at_once
        assert sorted(piece.ledger.unacked()) == [1, 3], at_once
        assert sink.take_written_ids([0, 1]) == {0: [output_id(0)], 1: []}, at_once


def test_of_several_from_one_edge_each_is_written_that_can_be() -> None:
    output = Kept(is_two)
    sink = OutputSink("job", "part", {"out": output})
    piece = put_out(sink, two_each())
    # The second one of 1, and the first one of 2.
    assert [it.origin for it in piece.failures] == [1, 2]
    assert sorted(piece.ledger.unacked()) == [1, 2]
    assert output.written.total() == 6
    assert sink.take_written_ids([1, 2, 3]) == {
        1: [output_id(1, 0)],
        2: [output_id(2, 1)],
        3: [output_id(3, 0), output_id(3, 1)],
    }


def test_what_was_put_is_told_once() -> None:
    sink = OutputSink("job", "part", {"out": Kept()})
    put_out(sink, one_each())
    assert sink.take_written_ids([]) == {}
    assert sink.take_written_ids([0]) == {0: []}


def test_a_part_stages_once_for_each_output_and_only_if_there_is_something() -> None:
    output, other = Kept(), Kept()
    sink = OutputSink("a job", "part", {"out": output, "other": other})
    program = one_each()
    put_out(sink, program)
    put_out(sink, program)
    assert len(output.stages) == 1
    assert output.stages[0].startswith("a%20job+out+")
    assert other.stages == []
    assert sink.prepare_commit() == [("out", {"count": 8})]


def test_what_is_abandoned() -> None:
    output = Kept()
    sink = OutputSink("job", "part", {"out": output})
    put_out(sink, one_each())
    sink.abort()
    assert output.abandoned == 1


def test_there_is_no_later_stage() -> None:
    sink = OutputSink("job", "part", {"out": Kept()})
    piece = piece_of(one_each())
    with pytest.raises(AssertionError, match="'sum' is of a later stage"):
        sink.send_downstream(piece, "sum", piece.ledger.add_roots(), count())


class Confused(OutputConnector):
    """Refuses what nobody gave it."""

    def create_writer(self, stage: str) -> OutputWriter:
        return _ConfusedStager()


class _ConfusedStager(OutputWriter):
    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        raise UnwritableSegmentsError({7: "who is that?"})

    def prepare_commit(self) -> Committable | None:
        return None


def test_an_output_that_refuses_what_it_was_not_given_is_not_asked_for_ever() -> None:
    sink = OutputSink("job", "part", {"out": Confused()})
    with pytest.raises(AssertionError, match="'out' refuses what it was not given"):
        put_out(sink, one_each())


class Full(OutputConnector):
    """Has no room now."""

    def create_writer(self, stage: str) -> OutputWriter:
        return _FullStager()


class _FullStager(OutputWriter):
    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        raise OSError("no room")

    def prepare_commit(self) -> Committable | None:
        return None


def test_what_is_not_possible_now_is_for_others_to_deal_with() -> None:
    sink = OutputSink("job", "part", {"out": Full()})
    with pytest.raises(OSError, match="no room"):
        put_out(sink, one_each())
