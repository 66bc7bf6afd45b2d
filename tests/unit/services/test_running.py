"""Actions at work: counted, limited in time, and waited for in the end."""

import asyncio
from collections.abc import Awaitable
from itertools import product
from typing import Any

import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import RequestTimeoutError
from postroad.services.running import Activity, all_idle, finish, limited
from tests.support.cases import naming
from tests.support.deadlines import DEADLINE_S

BROKER = Broker("near")


def context(timeout_s: float = 5.0) -> Context:
    return Context(BROKER, action="some.action", timeout_s=timeout_s)


async def at_once(ctx: Context) -> str:
    return "result"


async def later(ctx: Context) -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return "result"


async def failing(ctx: Context) -> str:
    await asyncio.sleep(0)
    raise KeyError("k")


async def failing_at_once(ctx: Context) -> str:
    raise KeyError("k")


async def for_ever(ctx: Context) -> None:
    await asyncio.Event().wait()


def a_future(ctx: Context) -> Awaitable[Any]:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, "result")
    return future


async def test_results_and_errors_come_through() -> None:
    for timeout_s, handler in product([0, 5], [at_once, later, a_future]):
        activity = Activity()
        assert await limited(handler, activity)(context(timeout_s)) == "result", (
            timeout_s,
            handler,
        )
        assert activity.running == 0, (timeout_s, handler)
    for timeout_s, handler in product([0, 5], [failing, failing_at_once]):
        activity = Activity()
        with naming((timeout_s, handler)), pytest.raises(KeyError):
            await limited(handler, activity)(context(timeout_s))
        assert activity.running == 0, (timeout_s, handler)


async def test_timeout_is_of_the_call_or_of_the_action_itself() -> None:
    with pytest.raises(RequestTimeoutError) as caught:
        await limited(for_ever, Activity())(context(0.01))
    assert caught.value.data == {"action": "some.action", "nodeID": "near"}

    async def impatient(ctx: Context) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as own:
        await limited(impatient, Activity())(context())
    assert not isinstance(own.value, RequestTimeoutError)


async def test_cancellation_reaches_the_action_which_may_refuse() -> None:
    ended: list[str] = []

    async def careful(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    task = asyncio.ensure_future(limited(careful, Activity())(context()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["ended"]

    async def stubborn(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stayed"
        return "never"

    task = asyncio.ensure_future(limited(stubborn, Activity())(context()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "stayed"


async def test_waiting_until_nothing_runs() -> None:
    one, other = Activity(), Activity()
    assert await all_idle([one, other], 0)
    gate = asyncio.Event()

    async def wait(ctx: Context) -> None:
        await gate.wait()

    async def wait_elsewhere(ctx: Context) -> None:
        await gate.wait()
        asyncio.get_running_loop().call_soon(next_begins)

    following: list[asyncio.Future[Any]] = []

    def next_begins() -> None:
        following.append(asyncio.ensure_future(limited(later, one)(context())))

    tasks = [
        asyncio.ensure_future(limited(wait, one)(context())),
        asyncio.ensure_future(limited(wait_elsewhere, other)(context())),
    ]
    await asyncio.sleep(0)
    assert not await all_idle([one, other], 0.01)
    waiting = [asyncio.ensure_future(all_idle([one, other], 5)) for _ in range(2)]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*waiting) == [True, True]
    await asyncio.gather(*tasks, *following)
    assert one.running == other.running == 0


async def test_all_who_wait_hear_of_the_end() -> None:
    activity = Activity()
    activity.running = 1
    waiting = [asyncio.ensure_future(all_idle([activity], 2)) for _ in range(3)]
    await asyncio.sleep(0)
    activity.leave()
    activity.running = 1
    for _ in range(3):
        await asyncio.sleep(0)
    activity.leave()
    assert await asyncio.gather(*waiting) == [True, True, True]


async def test_finish_ends_what_does_not_end_but_not_its_caller() -> None:
    quick = asyncio.ensure_future(asyncio.sleep(0))
    slow: asyncio.Future[Any] = asyncio.ensure_future(asyncio.Event().wait())
    running: set[Any] = {quick, slow}
    assert await finish(running, 0.01) == 1
    assert slow.cancelled()
    assert not quick.cancelled()
    assert await finish(set(), 5) == 0
    running = set()

    async def end_all() -> int:
        return await finish(running, 10 * DEADLINE_S)

    task = asyncio.ensure_future(end_all())
    running.add(task)
    assert await asyncio.wait_for(task, DEADLINE_S) == 0
