"""What every store does with the pens of pipelines. Each kind of store inherits these suites.

Here: numbers, positions and deliveries that come again. What becomes of roots that failed is in
`pipeline_root_behaviour`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest

from postroad.durable import Store
from postroad.pipeline.connectors import Position, Split
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import InputDelivery, RootState, StoredRoot
from postroad.pipeline.coordinator.schema import create_tables

T = TypeVar("T")

OWNER = "alpha"
NOW_MS = 1_700_000_000_000
# What is no number with a sign, nor the same number without one.
TOP_BIT = 1 << 63
HIGHEST = (1 << 64) - 1


class PenStore:
    """A store with the tables of pens, and one transaction for each thing done to them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def open(self) -> None:
        await self.store.open(OWNER)
        await self.create()

    async def create(self) -> None:
        types = self.store.column_types
        await self.store.write(lambda ledger: create_tables(types, ledger.database))

    async def do(self, action: Callable[[JobStore], T], job: str = "job") -> T:
        """Do something to the pen of a job, which is made if it is not there."""

        def act(pen: JobStore) -> T:
            pen.open()
            return action(pen)

        return await self.store.write(lambda ledger: act(JobStore(ledger.database, job)))


@pytest.fixture
async def pens(bare_store: Store) -> AsyncIterator[PenStore]:
    it = PenStore(bare_store)
    await it.open()
    try:
        yield it
    finally:
        await it.store.close()


def stretch(start: int, stop: int) -> Position:
    return {"start": start, "stop": stop}


def admit(
    pen: JobStore, start: int, stop: int, task: str = "in", now_ms: int = NOW_MS
) -> InputDelivery:
    """Deliver a slice of an input."""
    return pen.add_split(task, Split(stretch(start, stop), stop - start, {"index": stop}), now_ms)


def put_new(pen: JobStore, *roots: int, task: str = "in", due_ms: int = NOW_MS) -> None:
    """Have roots wait."""
    for root in roots:
        pen.insert_root(root, task, b"segment of %d" % root, due_ms)


def ids(roots: list[StoredRoot]) -> list[int]:
    return sorted(it.root for it in roots)


def settle_batches(pen: JobStore, count: int, run: str = "run") -> None:
    """Settle other batches."""
    first = pen.last_committed_batch(run) + 1
    for batch in range(first, first + count):
        pen.record_batch(run, batch)


class AccountBehaviour:
    """A pen knows how far a job is."""

    async def test_tables_are_made_once(self, pens: PenStore) -> None:
        delivery = await pens.do(lambda pen: admit(pen, 0, 3))
        await pens.create()
        await pens.store.close()
        await pens.open()
        assert await pens.do(lambda pen: pen.deliveries()) == [delivery]

    async def test_a_new_pen_has_nothing(self, pens: PenStore) -> None:
        def check(pen: JobStore) -> None:
            assert pen.position("in") is None
            assert pen.pending("in") == 0
            assert pen.counters() == (0, 0)
            assert pen.deliveries() == []
            assert pen.pending_commits() == []
            assert pen.next_due_ms() is None
            assert [pen.count(state) for state in RootState] == [0, 0, 0]

        await pens.do(check)

    async def test_deliveries_have_numbers_without_gaps(self, pens: PenStore) -> None:
        def deliver(pen: JobStore) -> list[int]:
            numbers = [admit(pen, 0, 3).number, admit(pen, 0, 3, "other").number]
            put_new(pen, 1, 2)
            put_new(pen, 3, task="other")
            for task in ("in", "other"):
                numbers += [it.number for it in pen.take_due_retries(task, NOW_MS, 10)]
            settle_batches(pen, 1)
            numbers += [it.number for it in pen.redeliver_expired("in", NOW_MS + 1, 0, NOW_MS)]
            return [*numbers, admit(pen, 3, 6).number]

        assert await pens.do(deliver) == list(range(1, 8))
        assert (await pens.do(lambda pen: pen.counters()))[0] == 7

    async def test_numbers_are_not_given_again(self, pens: PenStore) -> None:
        def deliver_and_settle(pen: JobStore) -> int:
            delivery = admit(pen, 0, 3)
            pen.complete_delivery(delivery)
            return delivery.number

        assert [await pens.do(deliver_and_settle) for _ in range(3)] == [1, 2, 3]

    async def test_each_input_has_a_position(self, pens: PenStore) -> None:
        await pens.do(lambda pen: [admit(pen, 0, 3), admit(pen, 3, 8), admit(pen, 0, 1, "other")])
        assert await pens.do(lambda pen: pen.position("in")) == {"index": 8}
        assert await pens.do(lambda pen: pen.position("other")) == {"index": 1}

    async def test_what_is_settled_is_not_pending(self, pens: PenStore) -> None:
        first, _, _ = await pens.do(
            lambda pen: [admit(pen, 0, 3), admit(pen, 3, 8), admit(pen, 0, 1, "other")]
        )
        assert await pens.do(lambda pen: (pen.pending("in"), pen.pending("other"))) == (8, 1)
        await pens.do(lambda pen: pen.complete_delivery(first))
        assert await pens.do(lambda pen: (pen.pending("in"), pen.pending("other"))) == (5, 1)

    async def test_roots_that_come_again_are_pending(self, pens: PenStore) -> None:
        def counts(pen: JobStore) -> tuple[int, int, int]:
            others = pen.pending("other", only_retries=True)
            return pen.pending("in"), pen.pending("in", only_retries=True), others

        await pens.do(lambda pen: admit(pen, 0, 5))
        await pens.do(lambda pen: put_new(pen, 1, 2, 3))
        assert await pens.do(counts) == (5, 0, 0)
        (delivery,) = await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS, 2))
        assert await pens.do(counts) == (7, 2, 0)
        await pens.do(lambda pen: pen.complete_delivery(delivery))
        assert await pens.do(counts) == (5, 0, 0)

    async def test_some_of_the_deliveries(self, pens: PenStore) -> None:
        made = await pens.do(lambda pen: [admit(pen, at, at + 1) for at in range(5)])
        assert await pens.do(lambda pen: pen.deliveries()) == made
        assert await pens.do(lambda pen: pen.deliveries(after=1, upto=4)) == made[1:4]
        assert await pens.do(lambda pen: pen.deliveries(after=4)) == made[4:]

    async def test_each_run_has_a_last_batch(self, pens: PenStore) -> None:
        def settle(pen: JobStore) -> tuple[int, int, int]:
            pen.record_batch("first", 0)
            pen.record_batch("second", 7)
            pen.record_batch("first", 1)
            return (
                pen.last_committed_batch("first"),
                pen.last_committed_batch("second"),
                pen.last_committed_batch("third"),
            )

        assert await pens.do(settle) == (1, 7, -1)
        assert await pens.do(lambda pen: pen.counters()) == (0, 3)

    async def test_publications_are_kept_in_order_until_they_are_done(self, pens: PenStore) -> None:
        def note(pen: JobStore) -> None:
            for number in range(3):
                pen.add_pending_commit(f"to_{number}", {"stage": number})

        await pens.do(note)
        waiting = await pens.do(lambda pen: pen.pending_commits())
        assert [(task, place) for _, task, place in waiting] == [
            (f"to_{number}", {"stage": number}) for number in range(3)
        ]
        await pens.do(lambda pen: pen.remove_pending_commit(waiting[1][0]))
        assert await pens.do(lambda pen: pen.pending_commits()) == [waiting[0], waiting[2]]


class ExpiryBehaviour:
    """What was delivered and never settled is delivered again."""

    async def test_only_what_had_its_time(self, pens: PenStore) -> None:
        def deliver(pen: JobStore) -> list[InputDelivery]:
            old, _ = admit(pen, 0, 3, now_ms=NOW_MS - 1), admit(pen, 3, 6)
            admit(pen, 0, 1, "other", NOW_MS - 1)
            again = pen.redeliver_expired("in", NOW_MS, 0, NOW_MS + 5)
            assert not pen.is_current(old)
            return again

        (again,) = await pens.do(deliver)
        assert again == InputDelivery(4, "in", stretch(0, 3), 3, 1, NOW_MS + 5, 0)
        numbers = [it.number for it in await pens.do(lambda pen: pen.deliveries())]
        assert numbers == [2, 3, 4]

    async def test_only_when_other_batches_were_settled_since(self, pens: PenStore) -> None:
        def deliver(pen: JobStore) -> tuple[InputDelivery, InputDelivery]:
            settle_batches(pen, 5)
            first = admit(pen, 0, 3)
            settle_batches(pen, 1)
            return first, admit(pen, 3, 6)

        first, second = await pens.do(deliver)
        assert (first.committed_batches_at_start, second.committed_batches_at_start) == (5, 6)
        later = NOW_MS + 100
        assert await pens.do(lambda pen: pen.redeliver_expired("in", later, 4, later)) == []
        again = await pens.do(lambda pen: pen.redeliver_expired("in", later, 5, later))
        assert [it.position for it in again] == [first.position]
        assert again[0].committed_batches_at_start == 6, "its clock starts anew"
        assert await pens.do(lambda pen: pen.is_current(second))

    async def test_generations_go_on(self, pens: PenStore) -> None:
        def deliver(pen: JobStore) -> list[InputDelivery]:
            times = range(NOW_MS + 1, NOW_MS + 4)
            admit(pen, 0, 3)
            return [
                again
                for now_ms in times
                for again in pen.redeliver_expired("in", now_ms, 0, now_ms)
            ]

        again = await pens.do(deliver)
        assert [(it.generation, it.number) for it in again] == [(1, 2), (2, 3), (3, 4)]

    async def test_roots_follow_their_delivery(self, pens: PenStore) -> None:
        def deliver(pen: JobStore) -> tuple[InputDelivery, InputDelivery]:
            put_new(pen, 1, HIGHEST)
            put_new(pen, 3, task="other")
            (first,) = pen.take_due_retries("in", NOW_MS, 10)
            pen.take_due_retries("other", NOW_MS, 10)
            (again,) = pen.redeliver_expired("in", NOW_MS + 1, 0, NOW_MS + 1)
            return first, again

        first, again = await pens.do(deliver)
        assert again.position is None
        assert await pens.do(lambda pen: pen.delivery_roots(first.number)) == []
        roots = await pens.do(lambda pen: pen.delivery_roots(again.number))
        assert {it.root: it.generation for it in roots} == {1: 1, HIGHEST: 1}
        other = await pens.do(lambda pen: pen.find(3))
        assert other is not None
        assert other.generation == 0


class SharingBehaviour:
    """Many jobs may be kept in one store."""

    async def test_jobs_do_not_see_each_other(self, pens: PenStore) -> None:
        def fill(pen: JobStore) -> None:
            admit(pen, 0, 3)
            put_new(pen, 1, 2)
            pen.take_due_retries("in", NOW_MS, 1)
            pen.record_batch("run", 3)
            pen.add_pending_commit("out", {"stage": 1})

        def check(pen: JobStore) -> None:
            assert pen.counters() == (0, 0)
            assert (pen.position("in"), pen.pending("in")) == (None, 0)
            assert pen.last_committed_batch("run") == -1
            assert pen.take_due_retries("in", NOW_MS, 10) == []
            assert (pen.pending_commits(), pen.deliveries(), pen.delivery_roots(2)) == ([], [], [])
            assert (pen.find(1), pen.next_due_ms(), pen.count(RootState.WAITING)) == (None, None, 0)

        await pens.do(fill)
        await pens.do(check, "another")

    async def test_what_one_does_changes_no_other(self, pens: PenStore) -> None:
        def fill(pen: JobStore) -> list[InputDelivery]:
            put_new(pen, 1)
            pen.add_pending_commit("out", {"stage": 1})
            return [admit(pen, 0, 3), *pen.take_due_retries("in", NOW_MS, 1)]

        def disturb(pen: JobStore) -> None:
            for delivery in fill(pen):
                pen.complete_delivery(delivery)
            pen.redeliver_expired("in", NOW_MS + 1, 0, NOW_MS + 1)
            pen.remove_pending_commit(pen.pending_commits()[-1][0])
            pen.record_batch("run", 1)

        delivered = await pens.do(fill)
        await pens.do(disturb, "another")
        assert await pens.do(lambda pen: pen.deliveries()) == delivered
        assert ids(await pens.do(lambda pen: pen.delivery_roots(2))) == [1]
        assert len(await pens.do(lambda pen: pen.pending_commits())) == 1
        assert await pens.do(lambda pen: pen.counters()) == (2, 0)
