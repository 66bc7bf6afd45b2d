"""How stores hand things over to threads, in all orders of the steps that this takes.

The simulator has no threads: there the functions of a store are called at once. So the real
hand-over is tried here, line by line.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from postroad.durable.store import worker_threads as threads
from postroad.durable.store.worker_threads import DirectThreadRunner
from tests.simulation.interleavings import ControlledLoop, ControlledQueue, Run, explore
from tests.support.tiers import by_tier

Story: TypeAlias = Callable[[Run], Coroutine[Any, Any, None]]

PREEMPTIONS = by_tier(test=2, nightly=3)
RUNS_MAX = by_tier(quick=200, test=2_000, nightly=100_000)


def execute(monkeypatch: pytest.MonkeyPatch, story: Story, run: Run) -> None:
    def make_thread(target: Callable[[], None], name: str, daemon: bool) -> object:
        return SimpleNamespace(start=lambda: run.spawn(target, name))

    monkeypatch.setattr(threads, "threading", SimpleNamespace(Thread=make_thread))
    monkeypatch.setattr(threads, "SimpleQueue", partial(ControlledQueue, run))
    run.execute(lambda: ControlledLoop(run).run_to_end(story(run)))


def explore_story(
    monkeypatch: pytest.MonkeyPatch, story: Story, *, runs_max: int = 5_000
) -> tuple[int, Run | None]:
    run = partial(execute, monkeypatch, story)
    return explore(run, threads.__file__, preemptions=PREEMPTIONS, runs_max=runs_max)


# Each has to end, with all of its threads.


async def do_things_in_order(run: Run) -> None:
    thread, done = DirectThreadRunner("one"), list[int]()
    futures = [thread.run(done.append, number) for number in range(3)]
    await futures[-1]
    assert done == [0, 1, 2]
    assert all(future.done() for future in futures)
    assert thread._outstanding == 0
    thread.stop()


async def fail_and_go_on(run: Run) -> None:
    thread = DirectThreadRunner("one")
    failing, ending = thread.run(int, "x"), thread.run(next, iter(()))
    assert await thread.run(abs, -1) == 1
    assert isinstance(failing.exception(), ValueError)
    assert isinstance(ending.exception(), RuntimeError)
    thread.stop()


async def give_up_waiting(run: Run) -> None:
    thread, done = DirectThreadRunner("one"), list[int]()
    first, given_up, last = [thread.run(done.append, number) for number in range(3)]
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(first, last)
    assert done in ([0, 2], [0, 1, 2])
    assert given_up.cancelled() or done == [0, 1, 2]
    assert thread._outstanding == 0
    thread.stop()


async def give_up_before(run: Run) -> None:
    thread, done = DirectThreadRunner("one"), list[int]()
    is_free = False
    first = thread.run(run.wait, lambda: is_free)
    given_up, last = thread.run(done.append, 1), thread.run(done.append, 2)
    given_up.cancel()
    is_free = True
    await asyncio.gather(first, last)
    assert done == [2]
    thread.stop()


async def do_two_things_at_once(run: Run) -> None:
    threads, begun = DirectThreadRunner("two", 2), list[int]()

    def meet(number: int) -> None:
        begun.append(number)
        run.wait(lambda: len(begun) >= 2)

    await asyncio.gather(threads.run(meet, 0), threads.run(meet, 1))
    assert threads._threads == 2
    threads.stop()


async def stop_with_things_left(run: Run) -> None:
    threads, done = DirectThreadRunner("two", 2), list[int]()
    futures = [threads.run(done.append, number) for number in range(2)]
    threads.stop()
    await asyncio.gather(*futures)
    assert sorted(done) == [0, 1]


async def leave(run: Run) -> None:
    threads, loop = DirectThreadRunner("two", 2), asyncio.get_running_loop()
    threads.run(abs, -1)
    threads.run(run.wait, loop.is_closed)
    await threads.run(abs, -2)


STORIES = [
    do_things_in_order,
    fail_and_go_on,
    give_up_waiting,
    give_up_before,
    do_two_things_at_once,
    stop_with_things_left,
    leave,
]


@pytest.mark.parametrize("story", STORIES)
def test_handover_in_any_order_ends_well(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    count, failed = explore_story(monkeypatch, story, runs_max=RUNS_MAX)
    assert failed is None, f"{failed.failure!r} after the choices {failed.taken}"
    print(f"{count} orders")


# Bugs that only some orders show.


class ForgetfulQueue(ControlledQueue):
    """Looks whether there is something, and then waits to be told: a wake-up can get lost."""

    _is_told = False

    def put(self, item: Any) -> None:
        super().put(item)
        self._is_told = True

    def get(self) -> Any:
        if not self._items:
            self._run.step()
            self._is_told = False
            self._run.wait(lambda: self._is_told)
        return self._items.popleft()


def plant_lost_wake_up_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ControlledQueue", ForgetfulQueue)


def plant_lost_wake_up_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(self: DirectThreadRunner, tell: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon(tell, *args)

    monkeypatch.setattr(DirectThreadRunner, "_post_result", tell)


def plant_result_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(self: DirectThreadRunner, done: asyncio.Future[Any], result: Any) -> None:
        self._outstanding -= 1
        done.set_result(result)

    monkeypatch.setattr(DirectThreadRunner, "_resolve", resolve)


def plant_one_thread_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    do = DirectThreadRunner._run_job

    def hear_at_once(self: DirectThreadRunner, *job: Any) -> None:
        self._outstanding -= 1
        do(self, *job)

    monkeypatch.setattr(DirectThreadRunner, "_run_job", hear_at_once)


def plant_threads_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectThreadRunner, "stop", lambda self: self._jobs.put(None))


@pytest.mark.parametrize(
    ("plant", "story", "text"),
    [
        (plant_lost_wake_up_of_the_thread, do_things_in_order, "a deadlock, of ['one']"),
        (plant_lost_wake_up_of_the_loop, do_things_in_order, "a deadlock, of ['loop', 'one']"),
        (plant_result_for_nobody, give_up_waiting, "invalid state"),
        (plant_one_thread_too_few, do_two_things_at_once, "a deadlock, of ['loop', 'two']"),
        (plant_threads_that_stay, stop_with_things_left, "a deadlock, of ['two']"),
    ],
)
def test_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    story: Story,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    _, failed = explore_story(monkeypatch, story)
    assert failed is not None and text in str(failed.failure)
    # The same choices find it again.
    again = Run(failed.taken, threads.__file__)
    execute(monkeypatch, story, again)
    assert (str(again.failure), again.choices) == (str(failed.failure), failed.choices)
