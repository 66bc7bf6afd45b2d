"""What is left over of roots, counted for many at a time, is what reports come to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.acks import AckIds, ack_value
from postroad.pipeline.vectorized.acks import (
    AckAccumulator,
    EdgeBatch,
    Ids,
    Indexes,
    UnackedRemainder,
)
from tests.support.pipeline.acker import Acker, ack_root, ack_task

BITS = AckIds("job")
ROOTS = [0, 4711, 2**63, 2**64 - 1]
TASKS = ("a", "b", "c")
NOTHING = UnackedRemainder(0, 0)


def words(values: list[int]) -> Ids:
    return np.array(values, dtype=np.uint64)


def indexes(values: list[int]) -> Indexes:
    return np.array(values, dtype=np.intp)


class Step(NamedTuple):
    """What a task does with all that waits for it; places beyond the last begin again."""

    counts: list[int]
    """How many it makes of each."""
    lost: list[bool]
    """Of which of them it never says that it took them."""
    targets: list[str]
    is_elsewhere: bool
    """Whether it does that in another pass."""


STEPS = st.lists(
    st.builds(
        Step,
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.just([False]) | st.lists(st.booleans(), min_size=1, max_size=5),
        st.lists(st.sampled_from(TASKS), min_size=1, max_size=2, unique=True),
        st.booleans(),
    ),
    max_size=6,
)


class Waiting(NamedTuple):
    """Edges along which something comes to a task, as a ledger has them."""

    task: str
    ledger: AckAccumulator
    edges: EdgeBatch


class Course:
    """The same things told to ledgers, of two passes, and to an acker."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.passes = [AckAccumulator(BITS, words(ROOTS), generation) for _ in range(2)]
        self.acker = Acker()
        self.waiting = [self._begin()]

    def _begin(self) -> Waiting:
        """Every root goes on along one edge."""
        ledger = self.passes[0]
        entered = ledger.add_roots()
        ledger.mark_processed(entered)
        for root in ROOTS:
            edge = BITS.edge(root, "in", "a", 0)
            self.acker.add(ack_root(root, self.generation, "in", [edge]))
        return Waiting("a", ledger, ledger.add_sent(entered, "in", "a"))

    def follow(self, step: Step) -> None:
        """A task takes all that waits for it in one of the passes, and gives what it makes."""
        task, ledger, edges = self._next()
        if step.is_elsewhere:
            ledger = self.passes[1 - self.passes.index(ledger)]
            edges = ledger.add_received(edges.ids, edges.origins)
        places = range(len(edges.ids))
        lost = [at for at in places if step.lost[at % len(step.lost)]]
        counts = [0 if at in lost else step.counts[at % len(step.counts)] for at in places]
        ledger.mark_processed(edges, lost)
        for target in step.targets:
            given = self._give(ledger, edges, task, target, counts)
            self.waiting.append(Waiting(target, ledger, given))
        for at in set(places).difference(lost):
            self._report(edges, at, task, step.targets, counts[at])

    def _next(self) -> Waiting:
        """All that waits for the same task in the same pass, as one."""
        first = self.waiting[0]
        alike = [it for it in self.waiting if it[:2] == first[:2]]
        self.waiting = [it for it in self.waiting if it not in alike]
        if len(alike) == 1:
            return first
        return first._replace(edges=first.ledger.concat([it.edges for it in alike]))

    def _give(
        self, ledger: AckAccumulator, edges: EdgeBatch, task: str, target: str, counts: list[int]
    ) -> EdgeBatch:
        if all(count == 1 for count in counts):
            return ledger.add_sent(edges, task, target)
        parents = indexes([at for at, count in enumerate(counts) for _ in range(count)])
        ordinals = words([ordinal for count in counts for ordinal in range(count)])
        return ledger.add_sent(edges, task, target, parents, ordinals)

    def _report(self, edges: EdgeBatch, at: int, task: str, targets: list[str], count: int) -> None:
        root, edge = ROOTS[edges.origins[at]], int(edges.ids[at])
        made = [
            BITS.edge(edge, task, target, ordinal) for target in targets for ordinal in range(count)
        ]
        self.acker.add(ack_task(root, self.generation, task, edge, made))


def add_up(ledgers: list[AckAccumulator], place: int) -> UnackedRemainder:
    bits, missing = NOTHING
    for ledger in ledgers:
        more = ledger.unacked().get(place, NOTHING)
        bits, missing = bits ^ more.bits, missing + more.missing
    return UnackedRemainder(bits, missing)


@given(STEPS, st.sampled_from([0, 1, 5]))
def test_what_is_left_over_is_what_reports_come_to(steps: list[Step], generation: int) -> None:
    course = Course(generation)
    for step in steps:
        course.follow(step)
    for place, root in enumerate(ROOTS):
        verdict = course.acker.verdict(root, generation)
        assert add_up(course.passes, place) == UnackedRemainder(verdict.residue, verdict.missing)


@given(STEPS, st.sampled_from([0, 1, 5]))
def test_when_all_is_taken_nothing_is_left_over(steps: list[Step], generation: int) -> None:
    course = Course(generation)
    for step in steps:
        course.follow(step._replace(lost=[False], is_elsewhere=False))
    while course.waiting:
        course.follow(Step([0], [False], ["a"], is_elsewhere=False))
        course.waiting = [it for it in course.waiting if len(it.edges.ids)]
    assert course.passes[0].unacked() == {}


# One by one.


def begun(generation: int = 0) -> tuple[AckAccumulator, EdgeBatch]:
    """A ledger where every root went on along one edge."""
    ledger = AckAccumulator(BITS, words(ROOTS), generation)
    entered = ledger.add_roots()
    ledger.mark_processed(entered)
    return ledger, ledger.add_sent(entered, "in", "a")


def bits_to_a(place: int, generation: int = 0) -> int:
    return ack_value(BITS.edge(ROOTS[place], "in", "a", 0), generation)


def test_what_is_taken_twice_is_never_done_with() -> None:
    for generation in (0, 3):
        ledger, edges = begun(generation)
        ledger.mark_processed(edges)
        ledger.mark_processed(edges, [0, 2])
        assert {place: it.bits for place, it in ledger.unacked().items()} == {
            1: bits_to_a(1, generation),
            3: bits_to_a(3, generation),
        }, generation


def test_taking_changes_no_ids() -> None:
    ledger, edges = begun()
    before = edges.ids.tolist()
    ledger.mark_processed(edges, [1])
    ledger.unacked()
    assert edges.ids.tolist() == before


def test_without_roots_nothing_is_left_over() -> None:
    ledger = AckAccumulator(BITS, words([]), 0)
    edges = ledger.add_sent(ledger.add_roots(), "in", "a")
    ledger.mark_processed(edges)
    assert ledger.unacked() == {}
