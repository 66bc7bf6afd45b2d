"""What a desk must not fall for: answers that come too late, storms of repetition, short clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from postroad.durable import MemoryDisk
from postroad.pipeline import MemoryInput, RetryPolicy
from postroad.pipeline.connectors import Committable
from postroad.pipeline.connectors.connector import Position, encode_segment
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    InputDelivery,
    RootInput,
    SegmentAttempt,
)
from tests.property.pipeline_strategies import SOME
from tests.support.pipeline.desk_jobs import (
    Appended,
    Clock,
    OpenDesk,
    count_to,
    input_task,
    job_of,
    numbers,
    open_desk,
)
from tests.support.pipeline.read_roots import read_roots

PATIENT = RetryPolicy(attempts=1_000, first_s=0.0, max_s=0.0)
BATCHES_BETWEEN = 3


@contextmanager
def moved_clock() -> Iterator[Clock]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("postroad.pipeline.coordinator.coordinator._now_ms", clock)
        yield clock


# Runners that do not know that they are dead.

SEGMENTS = 12
TIMEOUT_S = 60.0
ZOMBIE_TASK = input_task(batch_size=4, max_pending=8, retry=PATIENT, pending_timeout_s=TIMEOUT_S)


class Step(NamedTuple):
    """What happens next.

    Attributes:
        wait_s: time passes.
        admits: a runner asks for more.
        chosen: then some runner settles some of all that ever was delivered, the latest first.
        is_repeated: under a number that a batch had before.
        fails: with all of it failed.
    """

    wait_s: float
    admits: bool
    chosen: list[int]
    is_repeated: bool
    fails: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0.0, 0.0, TIMEOUT_S + 1]),
        st.booleans(),
        st.lists(st.integers(0, 5), max_size=3, unique=True),
        st.integers(0, 4).map(lambda it: it == 0),
        st.integers(0, 2).map(lambda it: it == 0),
    ),
    max_size=14,
)


class Told(MemoryInput):
    """An input that has its own acknowledgements, and forgets what it is told is done."""

    def __init__(self) -> None:
        super().__init__(({"n": n} for n in range(SEGMENTS)), split_segments=2)
        self.told: list[Position] = []

    async def on_committed(self, places: Sequence[Position]) -> None:
        self.told += places


class Zombies:
    """Runners, of whom some settle what others have by now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._disk = MemoryDisk()
        self._told = Told()
        self._input: dict[str, MemoryInput] = {"in": self._told}
        self.output = Appended()
        self._batch = 0
        self._stages = 0
        # All that ever was delivered, as it was read then.
        self._had: dict[int, tuple[InputDelivery, list[RootInput]]] = {}
        self._ids: dict[bytes, int] = {}

    async def live(self, steps: Iterable[Step]) -> None:
        """One process with the desk."""
        async with open_desk(job_of(ZOMBIE_TASK), self._input, self._disk, self.output) as it:
            await self._have(it, await it.desk.uncommitted())
            for step in steps:
                self._clock.advance(step.wait_s)
                if step.admits:
                    await self._have(it, await it.desk.next_deliveries())
                latest = sorted(self._had, reverse=True)
                chosen = [latest[place] for place in step.chosen if place < len(latest)]
                await self._settle(it, chosen, step)

    async def finish(self) -> None:
        """A process that does all that is left."""
        async with open_desk(job_of(ZOMBIE_TASK), self._input, self._disk, self.output) as it:
            for _ in range(50):
                for delivery in await it.desk.uncommitted():
                    await self._have(it, [delivery])
                    step = Step(0.0, False, [], False, False)
                    assert await self._settle(it, [delivery.number], step) is CommitResult.NOW
                if not await it.desk.next_deliveries() and await it.desk.is_drained():
                    return
        raise AssertionError("it is never done")

    async def _have(self, it: OpenDesk, deliveries: Iterable[InputDelivery]) -> None:
        for delivery in deliveries:
            roots = await read_roots(it.desk, delivery)
            self._had[delivery.number] = delivery, roots
            for root in roots:
                assert self._ids.setdefault(encode_segment(root.segment), root.root) == root.root

    async def _settle(self, it: OpenDesk, chosen: list[int], step: Step) -> CommitResult:
        had = [self._had[number] for number in chosen]
        roots = [root for _, those in had for root in those]
        failed = [fail(root) for root in roots] if step.fails else []
        staged = [] if step.fails else self._stage(roots)
        self._batch += not step.is_repeated
        outcome = BatchResult([delivery for delivery, _ in had], failed, staged)
        settled = await it.desk.commit_batch("run", self._batch, outcome)
        event(settled.name)
        still_open = [one.position for one in await it.desk.uncommitted()]
        assert not [place for place in self._told.told if place in still_open]
        return settled

    def _stage(self, roots: Iterable[RootInput]) -> list[tuple[str, Committable]]:
        self._stages += 1
        stager = self.output.create_writer(f"stage-{self._stages}")
        for it in roots:
            assert isinstance(it.segment, dict)
            stager.write([it.root], [it.segment])
        staged = stager.prepare_commit()
        assert staged is not None
        return [("out", staged)]


def fail(it: RootInput) -> FailedRoot:
    payload, attempt = encode_segment(it.segment), SegmentAttempt(it.generation, 0, "out", "no")
    return FailedRoot(it.root, it.task, it.generation, payload, attempt, [])


async def run_zombies(lives: list[list[Step]]) -> Appended:
    with moved_clock() as clock:
        zombies = Zombies(clock)
        for steps in lives:
            await zombies.live(steps)
        await zombies.finish()
    return zombies.output


@SOME
@given(st.lists(STEPS, min_size=1, max_size=3))
def test_whoever_settles_what_others_have_by_now_changes_nothing(lives: list[list[Step]]) -> None:
    """A runner that was taken for dead goes on, and settles what was delivered again since; or it
    settles a batch twice; or a batch of which only a part is still its own. The first that counts
    is the only one: nothing is lost, nothing is written twice, nothing stays staged, and no input
    hears that something is done which is still on its way. However often a segment is delivered,
    its id stays the same: by that, outputs know what they have.
    """
    output = asyncio.run(run_zombies(lives))
    assert numbers(output) == list(range(SEGMENTS))
    assert not output.staged


# Each has its time.


class Tick(NamedTuple):
    """Time passes, some batches are settled, then a runner asks for more.

    Attributes:
        settled: of what was delivered, which one is settled, if there are so many.
    """

    seconds: float
    batches: int
    settled: int | None


TICKS = st.lists(
    st.builds(
        Tick,
        st.sampled_from([0.0, 0.001, 1.0, 4.999, 5.0, 5.001, 20.0, 100_000.0]),
        st.integers(0, 4),
        st.none() | st.integers(0, 5),
    ),
    max_size=20,
)
TIMEOUTS_S = {"quick": 5.0, "slow": 20.0}


async def run_ticks(ticks: list[Tick]) -> None:
    tasks = [
        input_task(name, pending_timeout_s=timeout_s, batch_size=2, max_pending=6, retry=PATIENT)
        for name, timeout_s in TIMEOUTS_S.items()
    ]
    inputs = {name: count_to(100, 2) for name in TIMEOUTS_S}
    with moved_clock() as clock:
        async with open_desk(job_of(*tasks), inputs) as it:
            # By their numbers: when, and after how many batches, they were delivered.
            since: dict[int, tuple[int, int]] = {}
            for tick in ticks:
                clock.advance(tick.seconds)
                await it.settle_nothing(tick.batches)
                before = await it.desk.uncommitted()
                if tick.settled is not None and tick.settled < len(before):
                    one = before.pop(tick.settled)
                    failed = await it.fail([one]) if tick.batches == 1 else []
                    assert await it.settle([one], failed=failed) is CommitResult.NOW
                late = [one for one in before if is_late(one, since, clock, it.batch)]
                admitted = await it.desk.next_deliveries()
                left = {one.number for one in await it.desk.uncommitted()}
                assert {one.number for one in before} - left == {one.number for one in late}
                repeated = [one for one in admitted if one.generation]
                assert sorted(places(repeated)) == sorted(places(late))
                event(f"late: {bool(late)}")
                since |= {one.number: (clock.now_ms, it.batch) for one in admitted}


def is_late(
    one: InputDelivery, since: dict[int, tuple[int, int]], clock: Clock, batches: int
) -> bool:
    admitted_ms, batches_then = since[one.number]
    has_had_its_time = clock.now_ms - admitted_ms > TIMEOUTS_S[one.task] * 1000
    return has_had_its_time and batches - batches_then >= BATCHES_BETWEEN


def places(deliveries: Iterable[InputDelivery]) -> list[str]:
    return [f"{one.task} {one.position} {one.segments}" for one in deliveries]


@SOME
@given(TICKS)
def test_each_delivery_has_all_of_its_seconds_and_no_more(ticks: list[Tick]) -> None:
    """A clock that starts when something is read, or that ticks while the whole job stands still,
    takes time away from segments that nobody has worked on yet: they are repeated while they wait,
    and are late again. What is delivered comes again if and only if its time, from its own delivery
    on, is over and three batches were settled meanwhile; and whatever comes again has all of it
    anew.
    """
    asyncio.run(run_ticks(ticks))


# Storms.

MAX_PENDING = 20


class Round(NamedTuple):
    """A runner asks so often for more, then settles the oldest deliveries."""

    asks: int
    settles: int
    fails: bool


ROUNDS = st.lists(
    st.builds(Round, st.integers(0, 3), st.integers(0, 4), st.integers(0, 3).map(bool)),
    max_size=12,
)


async def run_rounds(rounds: list[Round]) -> None:
    task = input_task(batch_size=5, max_pending=MAX_PENDING, retry=PATIENT)
    share = MAX_PENDING // 5
    async with open_desk(job_of(task), {"in": count_to(300, 5)}) as it:
        for round in rounds:
            for _ in range(round.asks):
                await it.desk.next_deliveries()
            chosen = (await it.desk.uncommitted())[: round.settles]
            await it.settle(chosen, failed=await it.fail(chosen) if round.fails else [])
            pending, again = await it.see(
                lambda pen: (pen.pending("in"), pen.pending("in", only_retries=True))
            )
            event(f"again: {again}")
            assert again <= share
            assert pending <= MAX_PENDING + share


@SOME
@given(ROUNDS)
def test_what_fails_leaves_room_for_what_is_new(rounds: list[Round]) -> None:
    """When everything fails, because something is down that all need, everything comes again. If
    that took all the room, nothing new would be tried, and the storm would feed itself. It has a
    fifth of the room, however often a runner asks.
    """
    asyncio.run(run_rounds(rounds))


async def test_what_failed_together_comes_again_apart() -> None:
    """What failed at the same moment, because something was down, would meet it again at the same
    moment, all at once. Chance spreads it over half of the pause.
    """
    pausing = RetryPolicy(attempts=3, first_s=10.0, max_s=10.0)
    with moved_clock() as clock:
        async with open_desk(job_of(input_task(retry=pausing)), {"in": count_to(60)}) as it:
            deliveries = await it.desk.next_deliveries()
            failed = await it.fail(deliveries)
            await it.settle(deliveries, failed=failed)
            found = await it.see(lambda pen: [pen.find(one.root) for one in failed])
    pauses_ms = {one.due_ms - clock.now_ms for one in found if one is not None}
    assert len(pauses_ms) > 30
    assert 5_000 <= min(pauses_ms) < 7_000
    assert 8_000 < max(pauses_ms) <= 10_000


# Gaps.


async def run_gaps(rounds: list[list[int]]) -> None:
    task = input_task(batch_size=6, max_pending=MAX_PENDING, retry=PATIENT)
    async with open_desk(job_of(task), {"in": count_to(60, 3)}) as it:
        for chosen in rounds:
            await it.desk.next_deliveries()
            pending = await it.desk.uncommitted()
            done = [pending[place] for place in chosen if place < len(pending)]
            await it.settle(done)
            left = [one for one in pending if one not in done]
            first, last = await it.desk.committed_offset(), await it.desk.last_delivery()
            assert await it.desk.uncommitted(first, last) == left
            assert first == (left[0].number - 1 if left else last)


@SOME
@given(st.lists(st.lists(st.integers(0, 7), max_size=4, unique=True), max_size=10))
def test_a_runner_without_a_memory_begins_before_the_first_gap(rounds: list[list[int]]) -> None:
    """What was delivered later may be settled earlier. A runner that is told to begin behind the
    last that is settled, or behind all that was delivered, never gets what is still open before.
    """
    asyncio.run(run_gaps(rounds))
