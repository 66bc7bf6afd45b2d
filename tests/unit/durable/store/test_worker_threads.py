"""The threads that a store works in: one thing after the other, and the loop goes on meanwhile."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from postroad.durable.store.worker_threads import (
    DirectThreadRunner,
    ExecutorThreadRunner,
    ThreadRunner,
)
from tests.support.deadlines import DEADLINE_S

NAME = "a thread of this test"

Maker = Callable[[str], ThreadRunner]
Makers = Callable[[str, int], ThreadRunner]
KINDS = pytest.mark.parametrize("make", [DirectThreadRunner, ExecutorThreadRunner])


@pytest.fixture(autouse=True)
def all_end() -> Iterator[None]:
    """A thread that was stopped ends."""
    yield
    for thread in own_threads():
        thread.join(DEADLINE_S)
    assert own_threads() == []


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


def wait_for(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def fail(error: BaseException) -> None:
    raise error


@KINDS
async def test_results_come_back_while_the_loop_goes_on(make: Maker) -> None:
    thread = make(NAME)
    assert await thread.run(divmod, 17, 5) == (3, 2)
    assert await thread.run(threading.get_ident) != threading.get_ident()
    thread.stop()
    thread, event = make(NAME), threading.Event()
    waiting = thread.run(wait_for, event)
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    await waiting
    thread.stop()
    thread, event = make(NAME), threading.Event()
    unfinished = [thread.run(wait_for, event), thread.run(wait_for, event)]
    thread.stop()
    event.set()
    await asyncio.gather(*unfinished)


@KINDS
@pytest.mark.parametrize("error", [KeyError("a"), SystemExit(3)], ids=repr)
async def test_exceptions_come_back_and_the_thread_goes_on(
    make: Maker, error: BaseException
) -> None:
    thread = make(NAME)
    # Not raised through the loop, which some would end.
    failing = thread.run(fail, error)
    await asyncio.wait((failing,))
    assert failing.exception() is error
    assert await thread.run(abs, -1) == 1
    thread.stop()


@KINDS
async def test_things_are_done_one_by_one_in_order(make: Maker) -> None:
    thread, done, busy = make(NAME), list[int](), threading.Lock()

    def note(number: int) -> int:
        assert busy.acquire(blocking=False)
        done.append(number)
        busy.release()
        return number

    results = await asyncio.gather(*(thread.run(note, number) for number in range(200)))
    assert results == done == list(range(200))
    thread.stop()


@KINDS
async def test_cancelled_waiter_does_not_affect_others(make: Maker) -> None:
    thread, event, done = make(NAME), threading.Event(), list[str]()
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    given_up = [thread.run(wait_for, event), thread.run(fail, KeyError("unheard"))]
    other = thread.run(done.append, "done")
    for waiting in given_up:
        waiting.cancel()
    event.set()
    await other
    assert done == ["done"]
    assert all(waiting.cancelled() for waiting in given_up)
    assert troubles == []
    thread.stop()


@KINDS
async def test_job_cancelled_before_its_turn_does_not_run(make: Maker) -> None:
    thread, event, done = make(NAME), threading.Event(), list[str]()
    first = thread.run(wait_for, event)
    given_up = thread.run(done.append, "given up")
    last = thread.run(done.append, "last")
    given_up.cancel()
    # An executor is told of that by the loop.
    await asyncio.sleep(0)
    event.set()
    await asyncio.gather(first, last)
    assert done == ["last"]
    thread.stop()


@KINDS
async def test_several_threads_work_at_the_same_time(make: Makers) -> None:
    threads, together = make(NAME, 3), threading.Barrier(3)
    assert await asyncio.gather(*(threads.run(together.wait, DEADLINE_S) for _ in range(3)))
    assert len(own_threads()) == 3
    threads.stop()


@KINDS
async def test_thread_count_is_limited(make: Makers) -> None:
    threads, busy, most = make(NAME, 2), list[int](), list[int]()

    def note(number: int) -> None:
        busy.append(number)
        most.append(len(busy))
        busy.remove(number)

    await asyncio.gather(*(threads.run(note, number) for number in range(100)))
    assert len(own_threads()) <= 2
    assert max(most) <= 2
    threads.stop()


async def test_one_thread_is_enough_for_one_thing_after_the_other() -> None:
    threads = DirectThreadRunner(NAME, 8)
    names = [await threads.run(threading.get_ident) for _ in range(50)]
    assert len(set(names)) == len(own_threads()) == 1
    threads.stop()


async def test_nothing_is_kept_alive_while_there_is_nothing_to_do() -> None:
    class Thing:
        """Something large."""

    thread, thing = DirectThreadRunner(NAME), Thing()
    ref = weakref.ref(thing)
    await thread.run(id, thing)
    del thing
    async with asyncio.timeout(DEADLINE_S):
        while ref() is not None:
            gc.collect()
            await asyncio.sleep(0.001)
    thread.stop()


def test_thread_whose_loop_is_closed_ends() -> None:
    event, done = threading.Event(), list[str]()

    async def leave() -> None:
        thread = DirectThreadRunner(NAME)
        thread.run(wait_for, event)
        thread.run(fail, KeyError("unheard"))
        thread.run(done.append, "done")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    (thread,) = own_threads()
    event.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert done == ["done"]


def test_thread_does_not_keep_the_process_from_ending() -> None:
    async def look() -> bool:
        thread = DirectThreadRunner(NAME)
        (worker,) = own_threads()
        thread.stop()
        return worker.daemon

    assert asyncio.run(look())
