"""What is delivered, how much of it and when; what is settled, and how often."""

from __future__ import annotations

import msgspec
import pytest

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import (
    Job,
    MemoryInput,
    RetryPolicy,
    Task,
    TaskType,
    Window,
    WindowType,
)
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors import Committable
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import InputDelivery, RootState
from tests.support.pipeline.desk_jobs import (
    JOB,
    Appended,
    Clock,
    OpenDesk,
    count_to,
    input_task,
    job_of,
    numbers,
    open_desk,
    total,
)
from tests.support.pipeline.read_roots import read_roots


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    it = Clock()
    monkeypatch.setattr("postroad.pipeline.coordinator.coordinator._now_ms", it)
    return it


# How much.


async def test_no_more_is_pending_than_may_be(clock: Clock) -> None:
    job = job_of(input_task(batch_size=100, max_pending=25))
    async with open_desk(job, {"in": count_to(100, 10)}) as it:
        first = await it.desk.next_deliveries()
        assert [delivery.segments for delivery in first] == [10, 10, 5]
        assert await it.desk.next_deliveries() == []
        await it.settle(first[:1])
        assert total(await it.desk.next_deliveries()) == 10
        assert await it.see(lambda pen: pen.pending("in")) == 25


async def test_no_more_is_delivered_at_once_than_a_batch(clock: Clock) -> None:
    job = job_of(input_task(batch_size=7, max_pending=17))
    async with open_desk(job, {"in": count_to(100)}) as it:
        assert [total(await it.desk.next_deliveries()) for _ in range(4)] == [7, 7, 3, 0]
        assert it.desk.counts.delivered == 17


@pytest.mark.parametrize(("cores", "segments"), [(2, 20), (4, 40), (100, 50)])
async def test_batch_grows_with_the_cores_and_has_splits_for_all_of_them(
    cores: int, segments: int
) -> None:
    job = job_of(input_task(batch_size=10, max_pending=100))
    async with open_desk(job, {"in": count_to(1_000)}) as it:
        it.desk.parallelism = cores
        deliveries = await it.desk.next_deliveries()
        assert total(deliveries) == segments
        assert len(deliveries) >= min(cores, segments)
        # Half of what may be pending is left for the batch that is read meanwhile.
        assert total(await it.desk.next_deliveries()) == min(segments, 100 - segments)


async def test_each_input_has_its_own_limits(clock: Clock) -> None:
    job = job_of(input_task("a", max_pending=3), input_task("b", batch_size=5))
    async with open_desk(job, {"a": count_to(100), "b": count_to(100)}) as it:
        admitted = [*await it.desk.next_deliveries(), *await it.desk.next_deliveries()]
        assert [(it.task, it.segments) for it in admitted] == [("a", 3), ("b", 5), ("b", 5)]


async def all_failed(it: OpenDesk) -> None:
    """Everything that may be pending is delivered, and fails."""
    first = await it.desk.next_deliveries()
    await it.settle(first, failed=await it.fail(first))


async def test_what_comes_again_takes_a_fifth_of_the_room(clock: Clock) -> None:
    job = job_of(input_task(max_pending=50))
    async with open_desk(job, {"in": count_to(1_000)}) as it:
        await all_failed(it)
        again, new = await it.desk.next_deliveries()
        assert (again.position, again.segments) == (None, 10)
        assert (new.position, new.segments) == ({"start": 50, "stop": 90}, 40)
        assert await it.see(lambda pen: pen.pending("in")) == 50


async def test_what_comes_again_goes_on_even_where_the_fifth_is_none(clock: Clock) -> None:
    job = job_of(input_task(max_pending=2))
    async with open_desk(job, {"in": count_to(2)}) as it:
        await all_failed(it)
        assert total(await it.desk.next_deliveries()) == 1


async def test_what_comes_again_of_one_input_leaves_the_others_room(clock: Clock) -> None:
    job = job_of(input_task("a", max_pending=10), input_task("b", max_pending=1_000))
    async with open_desk(job, {"a": count_to(10), "b": count_to(1)}) as it:
        await all_failed(it)
        again = await it.desk.next_deliveries()
        assert sorted((it.task, it.segments) for it in again) == [("a", 2), ("b", 1)]


async def test_less_room_than_before_gives_nothing_more(clock: Clock) -> None:
    disk, inputs = MemoryDisk(), {"in": count_to(100)}
    async with open_desk(job_of(input_task(max_pending=50)), inputs, disk) as it:
        await all_failed(it)
        await it.desk.next_deliveries()
    async with open_desk(job_of(input_task(max_pending=5)), inputs, disk) as it:
        assert await it.desk.next_deliveries() == []


# Once.


async def test_a_batch_is_settled_once(clock: Clock) -> None:
    async with open_desk(job_of(input_task()), {"in": count_to(3)}) as it:
        first = await it.desk.next_deliveries()
        outcome = BatchResult(first, await it.fail(first), await it.stage("one", first))
        assert await it.desk.commit_batch("run", 1, outcome) is CommitResult.NOW
        assert await it.desk.commit_batch("run", 1, outcome) is CommitResult.BEFORE
        assert numbers(it.output) == [0, 1, 2]
        assert await it.see(lambda pen: pen.counters()) == (1, 1)
        again = await it.desk.next_deliveries()
        (kept, *_) = await it.see(lambda pen: pen.delivery_roots(again[0].number))
        assert len(kept.history) == 1, "it failed once"
        counts = it.desk.counts
        assert (counts.batches, counts.failed, counts.acked) == (1, 3, 0)


async def test_what_was_delivered_again_is_too_late(clock: Clock) -> None:
    job = job_of(input_task(pending_timeout_s=60.0, batch_size=3))
    async with open_desk(job, {"in": count_to(6)}) as it:
        late, other = [*await it.desk.next_deliveries(), *await it.desk.next_deliveries()]
        again = await overtake(it, clock, other)
        assert (again.position, again.generation) == (late.position, 1)
        before = await everything(it)
        staged = await it.stage("late", [late])
        failed = await it.fail([late])
        assert await it.settle([late], staged=staged, failed=failed) is CommitResult.TOO_LATE
        assert await everything(it) == before
        assert (it.output.discarded, it.output.staged) == (["late"], {})
        assert await it.settle([again], staged=await it.stage("again", [again])) is CommitResult.NOW
        assert numbers(it.output) == [0, 1, 2]


async def overtake(it: OpenDesk, clock: Clock, other: InputDelivery) -> InputDelivery:
    """Settle another delivery and some batches, so that what is left has its time behind it."""
    await it.settle([other])
    await it.settle_nothing(2)
    clock.advance(60.001)
    (again,) = await it.desk.next_deliveries()
    return again


async def everything(it: OpenDesk) -> object:
    """What a batch could change."""
    return await it.see(
        lambda pen: (
            pen.deliveries(),
            pen.counters(),
            pen.last_committed_batch("run"),
            pen.pending_commits(),
            [pen.count(state) for state in RootState],
        )
    )


async def test_a_batch_of_which_one_delivery_is_too_late_is_too_late(clock: Clock) -> None:
    job = job_of(input_task(batch_size=3))
    async with open_desk(job, {"in": count_to(9)}) as it:
        late, other, young = [
            delivery for _ in range(3) for delivery in await it.desk.next_deliveries()
        ]
        await it.settle([other])
        assert await it.settle([other, young]) is CommitResult.TOO_LATE
        again = msgspec.structs.replace(young, number=4, generation=1, committed_batches_at_start=1)
        assert await it.desk.uncommitted() == [late, again]
        assert await it.desk.next_deliveries() == [again], "it was nobody else's"


async def test_a_late_batch_with_rows_of_a_reader_is_done_again(clock: Clock) -> None:
    """Nobody else has these rows: to let the batch pass would lose them."""
    job = job_of(input_task(batch_size=3))
    async with open_desk(job, {"in": count_to(6)}) as it:
        late, young = [*await it.desk.next_deliveries(), *await it.desk.next_deliveries()]
        await it.settle([late])
        before = await everything(it)
        with pytest.raises(RuntimeError, match="delivered again"):
            await it.desk.commit_batch("reading", 7, BatchResult([late, young], read=5))
        assert await everything(it) == before
        await it.desk.commit_batch("reading", 7, BatchResult([young], read=5))
        assert it.desk.counts.acked == 3 + 3 + 5


async def test_what_failed_before_keeps_its_history_when_it_is_late(clock: Clock) -> None:
    job = job_of(input_task())
    async with open_desk(job, {"in": count_to(1)}) as it:
        await all_failed(it)
        (first,) = await it.desk.next_deliveries()
        await it.settle_nothing(3)
        clock.advance(61)
        (again,) = await it.desk.next_deliveries()
        (root,) = await it.see(lambda pen: pen.delivery_roots(again.number))
        assert (root.generation, len(root.history)) == (2, 1)
        assert await it.settle([first], failed=await it.fail([again])) is CommitResult.TOO_LATE
        await it.settle([again], failed=await it.fail([again]))
        kept = await it.see(lambda pen: pen.find(root.root))
        assert kept is not None
        assert [attempt.generation for attempt in kept.history] == [0, 2]


# When.


@pytest.mark.parametrize("behind_s", [3_600.0, 30 * 86_400.0])
async def test_what_waits_by_the_clock_of_another_host_does_not_wait_for_it(
    clock: Clock, behind_s: float
) -> None:
    """A job goes on where it was on a host whose clock is behind, or its clock is set back."""
    disk, inputs = MemoryDisk(), {"in": count_to(3)}
    job = job_of(input_task(retry=RetryPolicy(attempts=5, first_s=10.0, max_s=20.0)))
    async with open_desk(job, inputs, disk) as it:
        first = await it.desk.next_deliveries()
        await it.settle(first, failed=await it.fail(first))
        assert await it.desk.next_deliveries() == [], "they have a pause"
    clock.advance(-behind_s)
    async with open_desk(job, inputs, disk) as it:
        again = await it.desk.next_deliveries()
        assert total(again) == 3
        await it.desk.commit_batch("next", 1, BatchResult(again, await it.fail(again)))
        assert await it.desk.next_deliveries() == [], "by this clock they have a pause"
        clock.advance(20.001)
        assert total(await it.desk.next_deliveries()) == 3


async def test_what_a_window_emitted_is_late_some_time_too(clock: Clock) -> None:
    window = Window(name="w", task="f", type=WindowType.GLOBAL, aggregation="count")
    function = Task(name="f", type=TaskType.FUNCTION)
    output = Task(name="out", type=TaskType.OUTPUT, connector="memory")
    job = Job(
        name=JOB,
        workflow=[("in", "f"), ("f", "out")],
        catalog=[input_task(), function, output],
        windows=[window],
    )
    async with open_desk(job, {"in": count_to(0)}) as it:
        await it.store.write(
            lambda ledger: JobStore(ledger.database, JOB).insert_root(1, "f", b"\x80", 0)
        )
        (first,) = await it.desk.next_deliveries()
        await it.settle_nothing(3)
        clock.advance(function.pending_timeout_s + 1)
        (again,) = await it.desk.next_deliveries()
        assert (again.task, again.number) == ("f", first.number + 1)


# After a crash.


class Broken(Appended):
    """Cannot publish."""

    async def commit(self, staged: object) -> None:
        raise ConnectionRefusedError("down")


async def test_what_was_settled_and_not_published_is_published_when_it_opens(clock: Clock) -> None:
    disk, broken, output = MemoryDisk(), Broken(), Appended()
    job, inputs = job_of(input_task()), {"in": count_to(3)}
    async with open_desk(job, inputs, disk, broken) as it:
        first = await it.desk.next_deliveries()
        staged = await it.stage("one", first)
        await it.settle(first, staged=staged)
        assert not await it.desk.is_drained()
        assert len(await it.see(lambda pen: pen.pending_commits())) == 1
    output.staged = broken.staged
    async with open_desk(job, inputs, disk, output) as it:
        assert numbers(output) == [0, 1, 2]
        assert await it.see(lambda pen: pen.pending_commits()) == []
        assert await it.desk.uncommitted() == []


async def test_what_was_staged_and_not_settled_is_not_published(clock: Clock) -> None:
    disk, output = MemoryDisk(), Appended()
    job, inputs = job_of(input_task()), {"in": count_to(3)}
    async with open_desk(job, inputs, disk, output) as it:
        first = await it.desk.next_deliveries()
        await it.stage("one", first)
    async with open_desk(job, inputs, disk, output) as it:
        assert output.segments == []
        assert await it.desk.uncommitted() == first


async def test_a_delivery_is_the_same_whenever_it_is_read(clock: Clock) -> None:
    disk, job = MemoryDisk(), job_of(input_task())
    inputs: dict[str, MemoryInput] = {"in": count_to(30, 10)}
    async with open_desk(job, inputs, disk) as it:
        first = await it.desk.next_deliveries()
        await it.settle(first[:1], failed=await it.fail(first[:1]))
        admitted = [*first[1:], *await it.desk.next_deliveries()]
        read = [await read_roots(it.desk, delivery) for delivery in admitted]
    async with open_desk(job, inputs, disk) as it:
        assert await it.desk.uncommitted() == admitted
        assert [await read_roots(it.desk, delivery) for delivery in admitted] == read
        assert [len(roots) for roots in read] == [10, 10, 10]
        assert len({root.root for roots in read for root in roots}) == 30


async def test_an_output_that_cannot_be_published_to_keeps_no_other_waiting(clock: Clock) -> None:
    tasks = [
        input_task(),
        *(Task(name=name, type=TaskType.OUTPUT, connector="memory") for name in ("bad", "good")),
    ]
    job = Job(name=JOB, workflow=[("in", "bad"), ("in", "good")], catalog=tasks)
    outputs: dict[str, Appended] = {"bad": Broken(), "good": Appended()}
    store = MemoryStore(MemoryDisk())
    await store.open(JOB)
    desk = JobCoordinator(CompiledJob(job), store, {"in": count_to(3)}, outputs)
    await desk.open()
    deliveries = await desk.next_deliveries()
    staged: list[tuple[str, Committable]] = []
    for name, output in outputs.items():
        stager = output.create_writer(name)
        stager.write([1], [{"n": 0}])
        staged.append((name, stager.prepare_commit() or {}))
    await desk.commit_batch("run", 1, BatchResult(deliveries, staged=staged))
    assert numbers(outputs["good"]) == [0]
    left = await store.read(lambda database: JobStore(database, JOB).pending_commits())
    assert [name for _, name, _ in left] == ["bad"]
    await desk.close()
    await store.close()


# The end.


async def test_all_is_let_go_of_also_if_one_cannot_be(clock: Clock) -> None:
    class Gone(MemoryInput):
        async def close(self) -> None:
            raise ConnectionError("the server is gone")

    class Closed(MemoryInput):
        is_closed = False

        async def close(self) -> None:
            self.is_closed = True

    other = Closed(())
    job = job_of(input_task("a"), input_task("b"))
    with pytest.raises(ConnectionError, match="is gone"):
        async with open_desk(job, {"a": Gone(()), "b": other}):
            assert not other.is_closed
    assert other.is_closed
