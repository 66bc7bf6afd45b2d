"""Rows of small jobs with several stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroad.pipeline import Segment
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import RawRecords, encode_segment
from postroad.pipeline.coordinator.records import RetryRoot
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from postroad.pipeline.vectorized.shuffle_stages import ShuffleStage, SourceStage
from tests.support.pipeline.both_ways import RawInput

NUMBER = 7


@dataclass(frozen=True)
class Unreadable:
    """As a name it can be written, and then nobody can read it: MsgPack makes a dict of it."""

    number: int = 0


def count(stop: int) -> list[bytes]:
    return [encode_segment({"n": n}) for n in range(stop)]


def first_rows(
    program: CompiledJob, raws: Sequence[bytes], generation: int = 0
) -> list[ShuffleRow]:
    """What the first stage leaves."""
    chunk = RawRecords("file", range(len(raws)), raws)
    stage = SourceStage(program)
    slice = stage.process_split(NUMBER, "in", generation, RawInput(), [chunk])
    return [*(row for rows in slice for row in rows), *stage.finish()]


def later_rows(program: CompiledJob, stage: int, rows: Iterable[ShuffleRow]) -> list[ShuffleRow]:
    """What a later one leaves."""
    later = ShuffleStage(program, stage)
    return [*(row for those in later.take(rows) for row in those), *later.finish()]


def last_rows(program: CompiledJob, raws: Sequence[bytes], generation: int = 0) -> list[ShuffleRow]:
    """What comes to the end."""
    return _to_the_end(program, first_rows(program, raws, generation))


def rows_again(program: CompiledJob, roots: Iterable[RetryRoot]) -> list[ShuffleRow]:
    """What comes to the end of roots that come again."""
    again = SourceStage(program).process_retries(NUMBER, "in", roots)
    return _to_the_end(program, [row for rows in again for row in rows])


def _to_the_end(program: CompiledJob, rows: list[ShuffleRow]) -> list[ShuffleRow]:
    for stage in range(1, len(program.graph.stages)):
        rows = later_rows(program, stage, rows)
    return rows


def of_kind(rows: Iterable[ShuffleRow], kind: ShuffleRowKind) -> list[ShuffleRow]:
    return [row for row in rows if row.kind == kind]


def root_at(program: CompiledJob, position: int) -> int:
    return program.ack_ids.root("in", "file", position)


def same(segment: Segment) -> Segment:
    return segment


def refuse_odd(segment: Segment) -> Segment:
    n = segment["n"]
    segment["n"] = -1
    if n % 2:
        raise ValueError(f"{n} is odd")
    return {"n": n}
