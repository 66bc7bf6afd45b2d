"""A part of a batch of a job with one stage."""

from __future__ import annotations

from typing import Any

import msgspec

from postroad.pipeline import Segment
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import RawRecords, decode_segment, encode_segment
from postroad.pipeline.coordinator.records import FailedRoot, RetryRoot
from postroad.pipeline.vectorized import decoding as reading
from postroad.pipeline.vectorized.partition import (
    PartitionResult,
    SingleStagePartition,
    decode_part,
    encode_part,
)
from tests.support.pipeline.both_ways import (
    Comparable,
    Kept,
    RawInput,
    Slices,
    run_fused,
    run_one_by_one,
)
from tests.support.pipeline.small_jobs import program_of

decode_json = msgspec.json.Decoder(dict[str, Any]).decode


def refuse_odd(segment: Segment) -> Segment:
    n = segment["n"]
    segment["n"] = -1
    if n % 2:
        raise ValueError(f"{n} is odd")
    return {"n": n}


def refusing() -> CompiledJob:
    return program_of([("in", "a"), ("in", "out_b"), ("a", "out")], a=refuse_odd)


def count(stop: int) -> list[bytes]:
    return [encode_segment({"n": n}) for n in range(stop)]


def outputs() -> dict[str, Kept]:
    return {"out": Kept(), "out_b": Kept()}


def chunk_of(raws: list[bytes]) -> RawRecords:
    return RawRecords("file", range(len(raws)), raws)


def take(
    program: CompiledJob, *chunks: RawRecords, connector: RawInput | None = None
) -> PartitionResult:
    part = SingleStagePartition(program, outputs(), "part")
    part.process_split(7, "in", 0, connector or RawInput(), chunks)
    return part.finish()


def by_root(
    program: CompiledJob, failed: list[FailedRoot], source: str = "file"
) -> dict[int, Segment]:
    """What failed, by its position."""
    positions = {program.ack_ids.root("in", source, at): at for at in range(100)}
    return {positions[it.root]: msgspec.msgpack.decode(it.segment) for it in failed}


def both_ways(program: CompiledJob, raws: list[bytes], connector: RawInput) -> Comparable:
    """What comes of it, which is the same both ways."""
    slices = [Slices("in", 0, [chunk_of(raws)])]
    expected = run_one_by_one(program, slices, connector, outputs())
    assert run_fused(program, slices, connector, outputs()) == expected
    return expected


def test_roots_that_come_again_write_what_is_not_yet_written() -> None:
    program = program_of([("in", "out"), ("in", "out_b")])
    root = program.ack_ids.root("in", "file", 0)
    ids = {
        name: program.ack_ids.edge(program.ack_ids.edge(root, "in", name, 0), name, name, 0)
        for name in ("out", "out_b")
    }
    kept = outputs()
    part = SingleStagePartition(program, kept, "part")
    part.process_retries(8, "in", [RetryRoot(root, 3, encode_segment({"n": 1}), [ids["out"]])])
    outcome = part.finish()
    assert (outcome.deliveries, outcome.segments, outcome.failed) == ([8], 1, [])
    assert [id for id, _ in kept["out_b"].written] == [ids["out_b"]]
    assert not kept["out"].written


def test_roots_that_come_again_fail_again_with_all_that_is_written() -> None:
    program = refusing()
    root = program.ack_ids.root("in", "file", 0)
    kept = outputs()
    kept["out_b"].refuses = lambda segment: bool(segment["n"] == 4)
    part = SingleStagePartition(program, kept, "part")
    roots = [
        RetryRoot(root, 3, encode_segment({"n": 3}), [5]),
        RetryRoot(9, 1, encode_segment({"n": 4}), []),
    ]
    part.process_retries(8, "in", roots)
    first, second = part.finish().failed
    assert (first.root, first.generation, len(first.published)) == (root, 3, 2)
    assert 5 in first.published
    assert (second.root, second.attempt.missing) == (9, ["out_b"])
    assert decode_segment(second.segment) == {"n": 4}


def test_an_outcome_tells_everything() -> None:
    program = refusing()
    outcome = take(program, chunk_of(count(4)))
    assert (outcome.deliveries, outcome.segments) == ([7], 4)
    assert sorted(outcome.staged) == [("out", {"count": 2}), ("out_b", {"count": 4})]
    # As they were before a function changed them.
    assert by_root(program, outcome.failed) == {1: {"n": 1}, 3: {"n": 3}}
    (first, _) = outcome.failed
    assert (first.attempt.task, first.attempt.error) == ("a", "ValueError: 1 is odd")
    assert first.attempt.missing == ["a"]


def test_an_outcome_comes_through_as_bytes() -> None:
    outcome = take(refusing(), chunk_of([*count(4), b"\xc1"]))
    assert decode_part(encode_part(outcome)) == outcome


def test_more_than_a_piece() -> None:
    raws = count(reading.PIECE_SEGMENTS + 3)
    outcome = take(refusing(), chunk_of(raws))
    assert len(outcome.failed) == len(raws) // 2
    assert dict(outcome.staged)["out_b"] == {"count": len(raws)}


def test_what_cannot_come_again_is_permanent_if_it_fails() -> None:
    for number in (10**30 + 1, 1 - 10**30):
        raws = [b'{"n":0}', b'{"n":%d}' % number, b'{"n":%d}' % (number - 1)]
        found = both_ways(refusing(), raws, RawInput(decode_json))
        (failed,) = found.failed.values()
        assert (failed.is_permanent, failed.failed_tasks) == (True, ["a"]), number
        assert msgspec.msgpack.decode(failed.payload) == raws[1], number
        assert (found.written["out"].total(), found.written["out_b"].total()) == (2, 3), number


def test_a_slice_without_anything() -> None:
    outcome = take(refusing(), RawRecords("file", [], []))
    assert (outcome.deliveries, outcome.segments) == ([7], 0)
    assert (outcome.failed, outcome.staged) == ([], [])


def test_what_is_abandoned_is_thrown_away() -> None:
    kept = outputs()
    part = SingleStagePartition(refusing(), kept, "part")
    part.process_split(7, "in", 0, RawInput(), [chunk_of(count(4))])
    part.abort()
    assert [it.abandoned for it in kept.values()] == [1, 1]
