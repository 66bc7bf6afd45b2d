"""What acknowledgement by XOR must not fall for: doubles, equal edges, chance, mixtures."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from pyspark import TaskContext

from postroad.pipeline import Segment
from postroad.pipeline.acks import AckIds, ack_value
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import RawRecords, encode_segment
from postroad.pipeline.vectorized.partition import ShuffledPartition
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from tests.support.pipeline.acker import Acker, AckReport, ack_root, ack_task
from tests.support.pipeline.both_ways import Comparable, Kept, RawInput, Slices
from tests.support.pipeline.small_jobs import grouped_program_of
from tests.support.pipeline.without_spark import Given, Shuffling, run_shuffled

ROOT = 4711

# Reports.


def small_tree(generation: int) -> list[AckReport]:
    """A segment that becomes two, which both go to two tasks, one of which makes more of it."""
    bits = AckIds("job")
    reports = []
    top = [bits.edge(ROOT, "in", "f", ordinal) for ordinal in range(2)]
    reports.append(ack_root(ROOT, generation, "in", top))
    for edge in top:
        given = [bits.edge(edge, "f", target, 0) for target in ("left", "right")]
        reports.append(ack_task(ROOT, generation, "f", edge, given))
        more = bits.edge(given[0], "left", "out", 0)
        reports.append(ack_task(ROOT, generation, "left", given[0], [more]))
        reports.append(ack_task(ROOT, generation, "out", more, ()))
        reports.append(ack_task(ROOT, generation, "right", given[1], ()))
    return reports


@pytest.mark.parametrize("generation", [0, 1])
def test_doubled_reports_never_make_up_for_missing_ones(generation: int) -> None:
    """A batch that is done again, or two attempts at one task, report the same thing twice. XOR
    takes the second for an undoing of the first, so that zero comes out while something is missing:
    data would be lost. Each report comes here not at all, once or twice, in every combination.
    """
    reports = small_tree(generation)
    for copies in itertools.product(range(3), repeat=len(reports)):
        acker = Acker()
        for report, count in zip(reports, copies, strict=True):
            for _ in range(count):
                acker.add(report)
        assert acker.verdict(ROOT, generation).is_done == all(copies), copies


def verdict_of(*reports: AckReport) -> bool:
    acker = Acker()
    for report in reports:
        acker.add(report)
    return acker.verdict(ROOT, 0).is_done


def gather(*rows: ShuffleRow) -> list[int]:
    """The roots that are not done with, by their rows."""
    part = ShuffledPartition(
        grouped_program_of([("in", "out")], groups={}), {"out": Kept()}, "part"
    )
    part.take_rows(rows)
    return [it.root for it in part.finish().failed]


def ledger_row(
    task: str, bits: int, missing: int, kind: ShuffleRowKind = ShuffleRowKind.LEDGER
) -> ShuffleRow:
    payload = encode_segment({}) if kind is ShuffleRowKind.ROOT else b""
    return ShuffleRow(ROOT, kind, task, ROOT, 0, 0, bits, missing, payload)


def test_edges_that_cancel_each_other_are_still_counted() -> None:
    """Should two edges of a root have the same bits by some accident, XOR is zero while both are
    open. As many must be taken as were given.
    """
    init, done = ack_root(ROOT, 0, "in", (5, 5)), ack_task(ROOT, 0, "f", 5, ())
    assert not verdict_of(init)
    assert not verdict_of(init, done)
    assert gather(ledger_row("in", 0, 2, ShuffleRowKind.ROOT)) == [ROOT]


def test_as_many_as_were_given_is_not_enough() -> None:
    """Nor is the count alone: what was taken must be what was given."""
    assert not verdict_of(ack_root(ROOT, 0, "in", (5,)), ack_task(ROOT, 0, "f", 6, ()))
    rows = [ledger_row("in", 5, 1, ShuffleRowKind.ROOT), ledger_row("f", 6, -1)]
    assert gather(*rows) == [ROOT]


def test_nothing_left_over_is_not_done_if_nobody_saw_it_begin() -> None:
    """Where nothing was reported the sum is zero too. So a root is done with only if it was seen to
    come in; and one that then went nowhere, because everything of it was filtered, is.
    """
    done = ack_task(ROOT, 0, "f", 5, (6,)), ack_task(ROOT, 0, "g", 6, (5,))
    assert not verdict_of(*done)
    assert not verdict_of()
    assert verdict_of(ack_root(ROOT, 0, "in", ()))
    with pytest.raises(RuntimeError, match="came without it"):
        gather(ledger_row("f", 5, 1), ledger_row("g", 5, -1))
    assert gather(ledger_row("in", 0, 0, ShuffleRowKind.ROOT)) == []


# Edges.

NAMES = st.text("ab", max_size=2)
EDGES = st.tuples(st.integers(0, 3), NAMES, NAMES, st.integers(0, 3))


@pytest.mark.timeout(600)
@given(st.sets(EDGES, min_size=2), st.integers(0, 2))
def test_edges_that_differ_in_anything_have_other_bits(
    edges: set[tuple[int, str, str, int]], generation: int
) -> None:
    """Two edges with the same bits cancel each other: zero comes out though both were lost. So the
    segment it was made of, the task it is from, the one it is for and the place among its brothers
    all decide.
    """
    bits = AckIds("job")
    assert len({ack_value(bits.edge(*edge), generation) for edge in edges}) == len(edges)


TELL_IDS = """
from postroad.pipeline.acks import AckIds, ack_value
bits = AckIds("job")
edge = bits.edge(4711, "in", "f", 3)
print(bits.root("in", "file", 7), bits.root("in", "file", "key"), edge)
print(ack_value(edge, 0), ack_value(edge, 2))
"""
IDS = """
15802728925814037014 4369699768802391108 14808592003709716815
14808592003709716815 4447671068676838540
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_ids_are_the_same_in_every_process_and_version(hash_seed: str) -> None:
    """What is done again after a crash, in another process or on another machine, must report the
    same bits, or its root never comes to zero and is repeated for ever; and it must have the same
    ids, or outputs have it twice. Stores of running jobs have such ids in them: a version of
    Postroad that makes others writes twice what was written before.
    """
    done = subprocess.run(
        [sys.executable, "-c", TELL_IDS],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == IDS.strip()


# Computing again.


class Moods:
    """A function that makes more or less of the same segment each time it is computed."""

    def __init__(self, fans: list[list[int]]) -> None:
        self._fans = fans
        self.computation = 0

    def spread(self, segment: Segment) -> list[Segment]:
        count = self._fans[self.computation][segment["n"]]
        return [{"n": segment["n"], "part": part} for part in range(count)]

    def program(self) -> CompiledJob:
        """What it makes goes on after a shuffle."""
        edges = [("in", "spread"), ("spread", "grouped"), ("grouped", "out")]
        return grouped_program_of(edges, groups={"grouped": "part"}, spread=self.spread)


def numbers_to(count: int, generation: int = 0) -> Given:
    chunk = RawRecords("seq", range(count), [encode_segment({"n": n}) for n in range(count)])
    return Given(RawInput(), [Slices("in", generation, [chunk])])


class Recorded:
    """The rows that went through the first shuffle; some of them may be replaced by others."""

    def __init__(
        self, others: list[ShuffleRow] | None = None, buckets: frozenset[int] = frozenset()
    ) -> None:
        self.rows: list[ShuffleRow] = []
        self._others = others
        self._buckets = buckets

    def __call__(self, hop: int, rows: list[ShuffleRow]) -> list[ShuffleRow]:
        if hop > 0:
            return rows
        self.rows = rows
        if self._others is None:
            return rows
        kept = [row for row in rows if row.shard % BUCKETS not in self._buckets]
        return kept + [row for row in self._others if row.shard % BUCKETS in self._buckets]


BUCKETS = 5
FANS = st.lists(st.integers(0, 4), min_size=6, max_size=6)


@pytest.mark.timeout(600)
@given(FANS, FANS, st.frozensets(st.integers(0, BUCKETS - 1)), st.integers(0, 1))
def test_parts_of_two_computations_never_pass_for_a_whole(
    first: list[int], second: list[int], buckets: frozenset[int], generation: int
) -> None:
    """When a machine is lost, Spark computes again what was there, and whoever had its rows already
    keeps the old ones. A function that makes something else each time is then half of one kind and
    half of the other. What is told to be done with must be whole, and the rest comes again.
    """
    moods, given, out = Moods([first, second]), numbers_to(len(first), generation), Kept()
    program = moods.program()
    old = Recorded()
    run_shuffled(program, given, {"out": Kept()}, Shuffling(on_way=old))
    moods.computation = 1
    mixed = Recorded(old.rows, buckets)
    found = run_shuffled(program, given, {"out": out}, Shuffling(on_way=mixed))
    event(f"failed: {len(found.failed)}")
    for n in range(len(first)):
        root = program.ack_ids.root("in", "seq", n)
        parts = sorted(parts_of(n, out))
        said = (first if root % BUCKETS in buckets else second)[n]
        if root not in found.failed:
            assert parts == list(range(said))
        else:
            assert len(found.failed[root].published) == len(parts), "nothing is written again"


def parts_of(n: int, out: Kept) -> Iterator[int]:
    for (_, text), count in out.written.items():
        segment = dict(ast.literal_eval(text))
        if segment["n"] == n:
            yield from [segment["part"]] * count


class Attempt(NamedTuple):
    """What Spark says of a task that it runs."""

    attempt: int
    task: int
    partition: int


@contextmanager
def attempting(attempt: Attempt) -> Iterator[None]:
    """Be a task of Spark's, as far as one can ask."""
    context = TaskContext._getOrCreate()
    context._attemptNumber, context._taskAttemptId, context._partitionId = attempt
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


ATTEMPTS = st.builds(Attempt, st.integers(0, 3), st.integers(0, 99), st.integers(0, 7))


@pytest.mark.timeout(600)
@given(ATTEMPTS, ATTEMPTS, st.integers(0, 2))
def test_another_attempt_of_spark_tells_the_same(
    first: Attempt, second: Attempt, generation: int
) -> None:
    """Spark runs a task again that failed. How often it did must not be in the bits: what one
    attempt gave and another took would never add up. Only how often the root was delivered counts.
    """
    told: list[tuple[Comparable, list[ShuffleRow]]] = []
    for attempt in (first, second):
        moods, rows = Moods([[0, 1, 2, 3]]), Recorded()
        with attempting(attempt):
            given = numbers_to(4, generation)
            found = run_shuffled(moods.program(), given, {"out": Kept()}, Shuffling(on_way=rows))
        # How long tasks took is not the same.
        told.append((found, [row for row in rows.rows if row.kind != ShuffleRowKind.COUNTS]))
    assert told[0] == told[1]
    assert not told[0][0].failed


def test_no_two_attempts_stage_under_one_name() -> None:
    """An attempt that was given up may still write when the next one has finished. If both wrote to
    the same place, what is settled would be a mixture.
    """
    out = Kept()
    for _ in range(3):
        program = Moods([[1, 1, 1, 1]]).program()
        run_shuffled(program, numbers_to(4), {"out": out}, Shuffling(partitions=1))
    assert len(out.stages) == 3
    assert len(set(out.stages)) == 3
