"""What every store does with roots that failed: they wait, come again, die, or are forgotten."""

from __future__ import annotations

import msgspec
import pytest

from postroad.pipeline import RetryPolicy
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import FailedRoot, RootState, SegmentAttempt, StoredRoot
from tests.contract.pipeline_pen_behaviour import (
    HIGHEST,
    NOW_MS,
    TOP_BIT,
    PenStore,
    admit,
    ids,
    put_new,
)

POLICY = RetryPolicy(attempts=4, first_s=1.0, max_s=3.0)
ROOTS = [1, TOP_BIT - 1, TOP_BIT, TOP_BIT + 1, HIGHEST]


def failure(root: int = 1, generation: int = 0, **fields: object) -> FailedRoot:
    """A root that a batch could not finish."""
    attempt = SegmentAttempt(generation, NOW_MS, "task", f"error {generation}", ["task"])
    failed = FailedRoot(root, "in", generation, b"segment of %d" % root, attempt, [])
    return msgspec.structs.replace(failed, **fields)


def put_back(pen: JobStore, failed: FailedRoot, chance: float = 1.0) -> RootState:
    (state,) = pen.record_failures([failed], {failed.task: POLICY}, NOW_MS, lambda: chance)
    return state


def kill(pen: JobStore, *roots: int) -> None:
    """Make dead letters."""
    for root in roots:
        assert put_back(pen, failure(root, is_permanent=True)) is RootState.DEAD


def found(pen: JobStore, root: int) -> StoredRoot:
    it = pen.find(root)
    assert it is not None, f"{root} is not there"
    return it


class DueBehaviour:
    """Roots that wait are delivered at their time."""

    async def test_not_before_and_then_for_certain(self, pens: PenStore) -> None:
        await pens.do(lambda pen: put_new(pen, 1, due_ms=NOW_MS + 10))
        assert await pens.do(lambda pen: pen.next_due_ms()) == NOW_MS + 10
        assert await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS + 9, 10)) == []
        (delivery,) = await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS + 10, 10))
        assert (delivery.position, delivery.segments, delivery.started_ms) == (None, 1, NOW_MS + 10)
        assert await pens.do(lambda pen: pen.next_due_ms()) is None
        assert await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS + 10, 10)) == []

    async def test_at_most_so_many_and_the_longest_due_first(self, pens: PenStore) -> None:
        def deliver(pen: JobStore) -> list[list[int]]:
            for root in range(5):
                put_new(pen, root, due_ms=NOW_MS - root)
            deliveries = [pen.take_due_retries("in", NOW_MS, 2) for _ in range(3)]
            return [ids(pen.delivery_roots(it.number)) for (it,) in deliveries]

        assert await pens.do(deliver) == [[3, 4], [1, 2], [0]]

    async def test_those_of_one_input_together(self, pens: PenStore) -> None:
        def deliver(pen: JobStore, task: str) -> list[int]:
            (delivery,) = pen.take_due_retries(task, NOW_MS, 10)
            assert delivery.task == task
            roots = ids(pen.delivery_roots(delivery.number))
            assert delivery.segments == len(roots)
            return roots

        await pens.do(lambda pen: put_new(pen, 1, 3, 5))
        await pens.do(lambda pen: put_new(pen, 2, 4, task="other"))
        assert await pens.do(lambda pen: deliver(pen, "in")) == [1, 3, 5]
        assert await pens.do(lambda pen: deliver(pen, "other")) == [2, 4]

    async def test_where_there_is_no_room_none_come(self, pens: PenStore) -> None:
        await pens.do(lambda pen: put_new(pen, 1, 2))
        assert await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS, 0)) == []
        assert await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS, -1)) == []

    async def test_settling_a_delivery_does_away_with_its_roots(self, pens: PenStore) -> None:
        def settle(pen: JobStore) -> None:
            put_new(pen, 1, 2)
            put_new(pen, 3, task="other")
            (first,) = pen.take_due_retries("in", NOW_MS, 10)
            (second,) = pen.take_due_retries("other", NOW_MS, 10)
            put_new(pen, 4, due_ms=NOW_MS + 1)
            pen.complete_delivery(first)
            assert (pen.is_current(first), pen.is_current(second)) == (False, True)

        await pens.do(settle)
        left = await pens.do(lambda pen: [pen.find(root) for root in (1, 2, 3, 4)])
        assert [it is not None for it in left] == [False, False, True, True]

    async def test_what_was_put_back_stays_when_its_delivery_is_settled(
        self, pens: PenStore
    ) -> None:
        def fail_one(pen: JobStore) -> tuple[StoredRoot, StoredRoot | None]:
            put_new(pen, 1, 2)
            (delivery,) = pen.take_due_retries("in", NOW_MS, 10)
            put_back(pen, failure(1))
            pen.complete_delivery(delivery)
            return found(pen, 1), pen.find(2)

        failed, done = await pens.do(fail_one)
        assert (failed.state, done) == (RootState.WAITING, None)

    @pytest.mark.parametrize("root", ROOTS)
    async def test_all_64_bits_survive(self, pens: PenStore, root: int) -> None:
        def go_round(pen: JobStore) -> None:
            put_back(pen, failure(root, published=[root]))
            kept = found(pen, root)
            assert (kept.root, kept.segment) == (root, b"segment of %d" % root)
            assert kept.published == [root]
            (delivery,) = pen.take_due_retries("in", NOW_MS + 10_000, 10)
            assert ids(pen.delivery_roots(delivery.number)) == [root]
            put_back(pen, failure(root, 1, is_permanent=True))
            assert pen.retry_dead(root, NOW_MS) == 1
            kill(pen, root)
            assert pen.drop_dead(root) == 1
            assert pen.find(root) is None

        await pens.do(go_round)


class RetryBehaviour:
    """A root that failed comes again, later each time, until it is dead."""

    async def test_its_history_grows_until_it_is_dead(self, pens: PenStore) -> None:
        def fail_always(pen: JobStore) -> list[RootState]:
            return [put_back(pen, failure(1, generation)) for generation in range(4)]

        assert await pens.do(fail_always) == [RootState.WAITING] * 3 + [RootState.DEAD]
        dead = await pens.do(lambda pen: found(pen, 1))
        assert [(it.generation, it.error) for it in dead.history] == [
            (generation, f"error {generation}") for generation in range(4)
        ]
        assert dead.history[0] == SegmentAttempt(0, NOW_MS, "task", "error 0", ["task"])
        assert (dead.generation, dead.state) == (4, RootState.DEAD)
        counts = await pens.do(lambda pen: [pen.count(state) for state in RootState])
        assert counts == [0, 0, 1]

    @pytest.mark.parametrize(("chance", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
    async def test_pauses_double_up_to_the_longest(
        self, pens: PenStore, chance: float, share: float
    ) -> None:
        def pause_ms(pen: JobStore, generation: int) -> int:
            put_back(pen, failure(1, generation), chance)
            return found(pen, 1).due_ms - NOW_MS

        pauses = await pens.do(lambda pen: [pause_ms(pen, generation) for generation in range(3)])
        assert pauses == [1_000 * share, 2_000 * share, 3_000 * share]

    async def test_what_is_permanent_is_dead_at_once(self, pens: PenStore) -> None:
        await pens.do(lambda pen: kill(pen, 1))
        assert await pens.do(lambda pen: pen.count(RootState.DEAD)) == 1
        assert await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS + 1_000_000, 10)) == []

    async def test_one_attempt_may_be_all(self, pens: PenStore) -> None:
        policies = {"in": RetryPolicy(attempts=1)}
        states = await pens.do(
            lambda pen: pen.record_failures([failure()], policies, NOW_MS, lambda: 0.0)
        )
        assert states == [RootState.DEAD]

    async def test_many_are_put_back_at_once(self, pens: PenStore) -> None:
        def put(pen: JobStore) -> list[RootState]:
            put_back(pen, failure(500))
            failed = [failure(root, 1) for root in range(1_200)]
            return pen.record_failures(failed, {"in": RetryPolicy(attempts=2)}, NOW_MS, lambda: 0.0)

        states = await pens.do(put)
        assert [root for root, state in enumerate(states) if state is RootState.DEAD] == [500]
        assert await pens.do(lambda pen: pen.count(RootState.WAITING)) == 1_199
        assert len((await pens.do(lambda pen: found(pen, 500))).history) == 2

    async def test_what_any_attempt_wrote_is_remembered(self, pens: PenStore) -> None:
        def fail(pen: JobStore) -> list[int]:
            put_back(pen, failure(1, 0, published=[HIGHEST, 2]))
            put_back(pen, failure(1, 1, published=[2, 1]))
            put_back(pen, failure(1, 2, published=[]))
            return found(pen, 1).published

        assert await pens.do(fail) == [1, 2, HIGHEST]

    async def test_the_last_segment_and_generation_count(self, pens: PenStore) -> None:
        def fail(pen: JobStore) -> StoredRoot:
            put_back(pen, failure(1, 0))
            put_back(pen, failure(1, 5, segment=b"newer"))
            return found(pen, 1)

        kept = await pens.do(fail)
        assert (kept.segment, kept.generation, len(kept.history)) == (b"newer", 6, 2)

    async def test_a_new_root_has_no_history(self, pens: PenStore) -> None:
        await pens.do(lambda pen: put_new(pen, 9, task="window"))
        assert await pens.do(lambda pen: pen.find(9)) == StoredRoot(
            9, "window", RootState.WAITING, 0, NOW_MS, b"segment of 9", [], []
        )


class DeadBehaviour:
    """Somebody decides about dead letters."""

    async def test_they_are_listed_some_at_a_time(self, pens: PenStore) -> None:
        def list_all(pen: JobStore) -> list[int]:
            kill(pen, *range(5))
            pages = [
                pen.list_dead(2),
                pen.list_dead(2, after=1),
                pen.list_dead(2, after=3),
                pen.list_dead(2, after=4),
            ]
            assert [len(page) for page in pages] == [2, 2, 1, 0]
            return [it.root for page in pages for it in page]

        assert await pens.do(list_all) == list(range(5))

    async def test_all_of_them_are_listed(self, pens: PenStore) -> None:
        await pens.do(lambda pen: kill(pen, *ROOTS))
        assert ids(await pens.do(lambda pen: pen.list_dead(10))) == ROOTS

    async def test_lists_go_on_after_any_root(self, pens: PenStore) -> None:
        def list_all(pen: JobStore) -> list[int]:
            kill(pen, *ROOTS)
            (last,) = listed = pen.list_dead(1)
            while page := pen.list_dead(1, after=last.root):
                (last,) = page
                listed.append(last)
                assert len(listed) <= len(ROOTS), "a list that never ends"
            return ids(listed)

        assert await pens.do(list_all) == ROOTS

    async def test_one_may_come_again_with_a_clean_record(self, pens: PenStore) -> None:
        def replay(pen: JobStore) -> StoredRoot:
            put_back(pen, failure(1, 0, published=[7]))
            put_back(pen, failure(1, 1, is_permanent=True))
            kill(pen, 2)
            assert pen.retry_dead(1, NOW_MS + 5) == 1
            return found(pen, 1)

        again = await pens.do(replay)
        assert (again.state, again.due_ms, again.history) == (RootState.WAITING, NOW_MS + 5, [])
        assert (again.generation, again.published) == (2, [7]), "ids and bits stay as they were"
        (delivery,) = await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS + 5, 10))
        assert ids(await pens.do(lambda pen: pen.delivery_roots(delivery.number))) == [1]
        assert ids(await pens.do(lambda pen: pen.list_dead(10))) == [2]

    async def test_all_may_come_again(self, pens: PenStore) -> None:
        await pens.do(lambda pen: kill(pen, *ROOTS))
        await pens.do(lambda pen: put_new(pen, 99, due_ms=NOW_MS + 1))
        assert await pens.do(lambda pen: pen.retry_dead(None, NOW_MS)) == len(ROOTS)
        (delivery,) = await pens.do(lambda pen: pen.take_due_retries("in", NOW_MS, 10))
        assert ids(await pens.do(lambda pen: pen.delivery_roots(delivery.number))) == ROOTS

    async def test_one_or_all_may_be_forgotten(self, pens: PenStore) -> None:
        await pens.do(lambda pen: kill(pen, *ROOTS))
        assert await pens.do(lambda pen: pen.drop_dead(TOP_BIT)) == 1
        assert await pens.do(lambda pen: pen.find(TOP_BIT)) is None
        await pens.do(lambda pen: put_new(pen, 99))
        assert await pens.do(lambda pen: pen.drop_dead(None)) == len(ROOTS) - 1
        assert await pens.do(lambda pen: pen.list_dead(10)) == []
        assert await pens.do(lambda pen: pen.find(99)) is not None

    async def test_only_the_dead_are_decided_about(self, pens: PenStore) -> None:
        def decide(pen: JobStore) -> list[int]:
            put_new(pen, 1)
            pen.take_due_retries("in", NOW_MS, 1)
            put_new(pen, 2)
            counts = [pen.retry_dead(root, 0) for root in (1, 2, 3, None)]
            return counts + [pen.drop_dead(root) for root in (1, 2, 3, None)]

        assert await pens.do(decide) == [0] * 8
        assert await pens.do(lambda pen: (found(pen, 1).state, found(pen, 2).state)) == (
            RootState.PENDING,
            RootState.WAITING,
        )

    async def test_those_of_another_job_are_its_own(self, pens: PenStore) -> None:
        await pens.do(lambda pen: kill(pen, 1))
        await pens.do(lambda pen: kill(pen, 1, 2), "another")
        assert await pens.do(lambda pen: pen.drop_dead(None)) == 1
        assert await pens.do(lambda pen: pen.retry_dead(None, 0)) == 0
        assert ids(await pens.do(lambda pen: pen.list_dead(10), "another")) == [1, 2]

    async def test_a_slice_goes_and_its_failures_stay(self, pens: PenStore) -> None:
        def settle(pen: JobStore) -> None:
            delivery = admit(pen, 0, 3)
            put_back(pen, failure(1))
            kill(pen, 2)
            pen.complete_delivery(delivery)

        await pens.do(settle)
        counts = await pens.do(
            lambda pen: (pen.count(RootState.WAITING), pen.count(RootState.DEAD))
        )
        assert counts == (1, 1)
