"""A job of several stages comes to the same as one that runs root by root, however rows travel.

Of a row that is lost or doubled on the way its root alone takes notice, and never wrongly counts as
done with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from postroad.pipeline import Job
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.records import RetryRoot
from postroad.pipeline.validation import find_problems
from postroad.pipeline.vectorized import decoding as reading
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from tests.property.pipeline_strategies import SOME, WRITING, Writing, alike, deliveries, jobs
from tests.support.pipeline.both_ways import (
    Comparable,
    Failed,
    Kept,
    RawInput,
    make_program,
    run_delivered,
)
from tests.support.pipeline.odd_functions import TABLE, decode_oddly
from tests.support.pipeline.tree import execute_tree
from tests.support.pipeline.without_spark import (
    Again,
    Given,
    OnWay,
    Shuffling,
    leave_alone,
    run_in_order,
    run_shuffled,
)

# The rare ones first. Without one of the others a delivery is never settled, or the rest of a root
# has no root; only of what never was a segment nothing else tells.
GUARDED = (
    ShuffleRowKind.ADDITION,
    ShuffleRowKind.OUTPUT,
    ShuffleRowKind.LEDGER,
    ShuffleRowKind.SEGMENT,
    ShuffleRowKind.FAILURE,
)
OTHERS = (
    ShuffleRowKind.REFUSED,
    ShuffleRowKind.AGAIN,
    ShuffleRowKind.ROOT,
    ShuffleRowKind.DELIVERY,
)

# What is given.


@st.composite
def given_to(draw: st.DrawFn, program: CompiledJob) -> Given:
    slices = draw(deliveries(list(program.graph.inputs)))
    again = [draw(coming_again(program))] if draw(st.booleans()) else []
    return Given(RawInput(decode_oddly), slices, again)


@st.composite
def coming_again(draw: st.DrawFn, program: CompiledJob) -> Again:
    """Roots that failed before, or were emitted, of which a part is published."""
    task = draw(st.sampled_from([*program.graph.inputs, *sorted(program.windowed_tasks)]))
    roots = []
    for root in range(1, draw(st.integers(1, 5))):
        segment, generation = {"n": draw(st.integers(0, 9))}, draw(st.integers(1, 3))
        if draw(st.integers(0, 5)) == 0:
            # It never was a segment.
            roots.append(RetryRoot(root, generation, encode_segment(b"\xc1"), []))
            continue
        packed = encode_segment(segment)
        made = execute_tree(program, task, root, generation, segment).outputs
        published = [it.id for it in made if draw(st.booleans())]
        roots.append(RetryRoot(root, generation, packed, published))
    return Again(task, roots)


# The ways it can go.


class Way:
    """A job, what it is given, and how its rows travel."""

    def __init__(
        self, program: CompiledJob, given: Given, writing: Writing, how: Shuffling
    ) -> None:
        self.program = program
        self._given = given
        self._writing = writing
        self._how = how

    def _outputs(self) -> dict[str, Kept]:
        return {name: self._writing.open() for name in self.program.graph.outputs}

    def expected(self) -> Comparable:
        found = run_in_order(self.program, self._given, self._outputs())
        return alike(found, self.program.windowed_tasks)

    def expected_without(self, root: int) -> Comparable:
        others = [it for it in self._given.deliver(self.program) if it.root != root]
        found = run_delivered(self.program, others, self._outputs())
        return alike(found, self.program.windowed_tasks)

    def travel(self, on_way: OnWay = leave_alone) -> Comparable:
        how = self._how
        how = Shuffling(how.seed, how.partitions, how.batch_rows, on_way)
        found = run_shuffled(self.program, self._given, self._outputs(), how)
        return alike(found, self.program.windowed_tasks)


@st.composite
def ways(draw: st.DrawFn) -> Way:
    job: Job = draw(jobs(stages_max=3))
    assert find_problems(job) == []
    program = make_program(job, TABLE)
    how = Shuffling(
        seed=draw(st.integers(0, 2**32)),
        partitions=draw(st.integers(1, 4)),
        batch_rows=draw(st.sampled_from([2, 10, 1000])),
    )
    return Way(program, draw(given_to(program)), draw(WRITING), how)


def assert_same(found: Comparable, expected: Comparable) -> None:
    """Root by root first: that is easier to read."""
    for root in found.failed.keys() | expected.failed.keys():
        assert found.failed.get(root) == expected.failed.get(root)
    assert found == expected


@SOME
@given(ways(), st.sampled_from([1, 3, 2048]))
def test_shuffled_rows_come_to_the_same_as_one_root_after_the_other(
    way: Way, piece_segments: int
) -> None:
    expected = way.expected()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "PIECE_SEGMENTS", piece_segments)
        found = way.travel()
    event(f"stages: {len(way.program.graph.stages)}")
    event(f"failed: {bool(expected.failed)}, written: {any(expected.written.values())}")
    event(f"windows: {bool(way.program.windowed_tasks)}, added: {len(expected.delta) > 3}")
    assert_same(found, expected)


# Mishaps.


class Mishap:
    """Something happens to one row of some kind, if there is one.

    Args:
        hop: in which shuffle, if there are so many.
        kinds: which rows it can happen to, the first of those that there are.
        copies: how often the row arrives.
    """

    def __init__(self, seed: int, hop: int, kinds: Sequence[ShuffleRowKind], copies: int) -> None:
        self._chance = random.Random(seed)
        self._hop = hop
        self._kinds = kinds
        self._copies = copies
        self.row: ShuffleRow | None = None

    def __call__(self, hop: int, rows: list[ShuffleRow]) -> list[ShuffleRow]:
        there = {row.kind for row in rows}
        kind = next((it for it in self._kinds if it in there), None)
        if hop != self._hop or kind is None:
            return rows
        place = self._chance.choice([at for at, row in enumerate(rows) if row.kind == kind])
        self.row = rows[place]
        return [*rows[:place], *[self.row] * self._copies, *rows[place + 1 :]]


def mishaps(kinds: Sequence[ShuffleRowKind], copies: int) -> st.SearchStrategy[Mishap]:
    return st.builds(
        Mishap, st.integers(0, 2**32), st.integers(0, 2), st.permutations(kinds), st.just(copies)
    )


def others(failed: dict[int, Failed], root: int) -> dict[int, Failed]:
    return {it: value for it, value in failed.items() if it != root}


def ids_of(found: Comparable) -> list[int]:
    """What was written, by ids."""
    return sorted(id for written in found.written.values() for id, _ in written.elements())


@SOME
@given(ways(), mishaps(GUARDED, copies=0))
def test_a_root_of_which_a_row_is_lost_is_not_done_with(way: Way, mishap: Mishap) -> None:
    found = way.travel(mishap)
    assume(mishap.row is not None)
    assert mishap.row is not None
    event(f"lost: {ShuffleRowKind(mishap.row.kind).name}")
    root = mishap.row.root
    rest = way.expected_without(root)
    assert others(found.failed, root) == rest.failed
    assert found.delta == rest.delta
    # What of it was written is known, so that it is not written again.
    failed = found.failed[root]
    written = ids_of(found)
    for id in ids_of(rest):
        written.remove(id)
    assert written == failed.published
    whole = way.expected()
    assert all(found.written[name] <= whole.written[name] for name in whole.written)
    assert failed.failed_tasks or "of what was made of it never arrived" in (failed.error or "")


@SOME
@given(ways(), mishaps(GUARDED + OTHERS, copies=2))
def test_a_row_that_comes_twice_doubles_nothing_and_loses_nothing(way: Way, mishap: Mishap) -> None:
    found, expected = way.travel(mishap), way.expected()
    assume(mishap.row is not None)
    assert mishap.row is not None
    root, kind = mishap.row.root, ShuffleRowKind(mishap.row.kind)
    event(f"doubled: {kind.name}")
    assert found.written == expected.written
    assert others(found.failed, root) == others(expected.failed, root)
    if root in expected.failed:
        # What failed may be told twice; a window that would refuse it is not asked any more where
        # what was doubled does not add up.
        tasks = set(expected.failed[root].failed_tasks)
        assert tasks == {"a window"} or set(found.failed[root].failed_tasks) <= tasks
        assert found.failed[root].published == expected.failed[root].published
        assert found.delta == expected.delta
    elif kind is ShuffleRowKind.SEGMENT and root in found.failed:
        # What was done twice in one go does not add up: the root comes again, and nothing of it
        # was added to windows.
        event("doubled: comes again")
        rest = way.expected_without(root)
        assert found.delta == rest.delta
        assert sorted(ids_of(rest) + found.failed[root].published) == ids_of(found)
    else:
        assert_same(found, expected)
