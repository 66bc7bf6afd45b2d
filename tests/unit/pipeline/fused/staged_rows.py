"""Rows of small jobs with several stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroad.pipeline import Segment
from postroad.pipeline.fused.rows import Kind, Row
from postroad.pipeline.fused.staged_passes import FirstPass, LaterPass
from postroad.pipeline.media.medium import Chunk, encode_segment
from postroad.pipeline.program import Program
from postroad.pipeline.records import KeptRoot
from tests.support.pipeline.both_ways import RawInput

NUMBER = 7


@dataclass(frozen=True)
class Unreadable:
    """As a name it can be written, and then nobody can read it: MsgPack makes a dict of it."""

    number: int = 0


def count(stop: int) -> list[bytes]:
    return [encode_segment({"n": n}) for n in range(stop)]


def first_rows(program: Program, raws: Sequence[bytes], generation: int = 0) -> list[Row]:
    """What the first stage leaves."""
    chunk = Chunk("file", range(len(raws)), raws)
    slice = FirstPass(program).take_slice(NUMBER, "in", generation, RawInput(), [chunk])
    return [row for rows in slice for row in rows]


def later_rows(program: Program, stage: int, rows: Iterable[Row]) -> list[Row]:
    """What a later one leaves."""
    return [row for those in LaterPass(program, stage).take(rows) for row in those]


def last_rows(program: Program, raws: Sequence[bytes], generation: int = 0) -> list[Row]:
    """What comes to the end."""
    return _to_the_end(program, first_rows(program, raws, generation))


def rows_again(program: Program, roots: Iterable[KeptRoot]) -> list[Row]:
    """What comes to the end of roots that come again."""
    again = FirstPass(program).take_again(NUMBER, "in", roots)
    return _to_the_end(program, [row for rows in again for row in rows])


def _to_the_end(program: Program, rows: list[Row]) -> list[Row]:
    for stage in range(1, len(program.graph.stages)):
        rows = later_rows(program, stage, rows)
    return rows


def of_kind(rows: Iterable[Row], kind: Kind) -> list[Row]:
    return [row for row in rows if row.kind == kind]


def root_at(program: Program, position: int) -> int:
    return program.bits.root("in", "file", position)


def same(segment: Segment) -> Segment:
    return segment


def refuse_odd(segment: Segment) -> Segment:
    n = segment["n"]
    segment["n"] = -1
    if n % 2:
        raise ValueError(f"{n} is odd")
    return {"n": n}
