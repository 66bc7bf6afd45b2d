"""Steps: functions that may do anything, whose results are remembered."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path

import pytest

from postroad.core.errors import PostroadError
from postroad.durable import SyncTransaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowStatus,
    RetryPolicy,
    StepId,
    StoreConnection,
    flow,
)
from postroad.flows.errors import SerializationError, StepFailedError
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.flows.nodes import FlowNodes

SOON = RetryPolicy(max_attempts=4, initial_delay_s=0.001, max_delay_s=0.004)


class Sold(PostroadError):
    """An error of the users' own, with what it was made of."""

    def __init__(self, item: str, remaining: int) -> None:
        super().__init__(item, remaining)
        self.item = item
        self.remaining = remaining

    def __str__(self) -> str:
        return f"{self.item} is sold, {self.remaining} are left"


class Stubborn(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


@dataclasses.dataclass
class Point:
    """A value of the users' own."""

    x: int
    y: int


async def test_plain_functions_run_in_threads_and_coroutines_on_the_loop(nodes: FlowNodes) -> None:
    def which_thread() -> int:
        return threading.get_ident()

    async def which_loop() -> int:
        assert asyncio.get_running_loop() is loop
        return threading.get_ident()

    def make_awaitable() -> Awaitable[int]:
        return which_loop()

    @flow
    async def look(ctx: FlowContext) -> list[int]:
        return [
            await ctx.step(which_thread),
            await ctx.step(which_loop),
            await ctx.step(make_awaitable),
        ]

    loop = asyncio.get_running_loop()
    in_thread, *on_loop = await nodes.run(look)
    assert in_thread != threading.get_ident()
    assert on_loop == [threading.get_ident()] * 2


async def test_blocking_step_does_not_block_event_loop(nodes: FlowNodes) -> None:
    both = threading.Barrier(2)

    @flow
    async def meet(ctx: FlowContext) -> list[bool]:
        def wait() -> bool:
            return both.wait(10) >= 0

        return await ctx.gather(ctx.step(wait), ctx.step(wait))

    assert await nodes.run(meet) == [True, True]


async def test_more_functions_than_threads(nodes: FlowNodes) -> None:
    running: list[int] = []
    most: list[int] = []

    def work(number: int) -> int:
        running.append(number)
        most.append(len(running))
        running.remove(number)
        return number

    @flow
    async def many(ctx: FlowContext) -> list[int]:
        return await ctx.gather(*(ctx.step(work, number) for number in range(30)))

    alpha = await nodes.start("alpha", many, step_threads=2)
    assert await alpha.run(many) == list(range(30))
    assert max(most) <= 2


async def test_step_cancelled_before_its_turn_is_not_called(nodes: FlowNodes) -> None:
    release = threading.Event()
    called: list[str] = []

    def block() -> None:
        assert release.wait(DEADLINE_S)

    @flow
    async def choose(ctx: FlowContext) -> str:
        name, _ = await ctx.select(
            blocked=ctx.step(block),
            queued=ctx.step(called.append, "queued"),
            told=ctx.wait_for_signal("go", str),
        )
        await ctx.step(called.append, "last")
        return name

    alpha = await nodes.start("alpha", choose, step_threads=1)
    handle = await alpha.begin(choose)
    await alpha.flows.signal(handle.id, "go", "now")
    # With what the flow has chosen, it has given up the others.
    await alpha.until_steps(handle.id, 1)
    release.set()
    assert await handle.result(DEADLINE_S) == "told"
    assert called == ["last"]


ENDLESS = """
import asyncio, sys, threading

from postroad import run
from postroad.net import MessagingService
from postroad.durable import DurableQueues, SqliteStore, StaticPeerDirectory
from postroad.flows import FlowContext, FlowService, flow

begun = threading.Event()


def wait_for_ever() -> None:
    begun.set()
    threading.Event().wait()


@flow
async def endless(ctx: FlowContext) -> None:
    await ctx.step(wait_for_ever)


async def main() -> None:
    async with (
        MessagingService("demo", "alpha") as alpha,
        DurableQueues(alpha, SqliteStore(sys.argv[1]), directory=StaticPeerDirectory()) as queues,
        FlowService(queues, [endless]) as flows,
    ):
        await flows.start_flow(endless)
        await asyncio.to_thread(begun.wait)
    print("stopped")


run(main())
"""


async def test_a_process_that_stops_does_not_wait_for_a_function(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENDLESS, str(tmp_path / "alpha.db"), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert (output.strip(), process.returncode) == (b"stopped", 0)


async def test_arguments_results_and_names(nodes: FlowNodes) -> None:
    def move(point: Point, *, by: int = 1) -> Point:
        return Point(point.x + by, point.y + by)

    def both(x: int, y: int) -> tuple[int, int]:
        return x, y

    @flow
    async def work(ctx: FlowContext, start: Point) -> list[object]:
        first = await ctx.step(move, start)
        second = await ctx.step.with_options(name="a long way")(move, first, by=10)
        return [second.x, second.y, await ctx.step(both, 1, 2) == (1, 2)]

    alpha, handle = await nodes.begin(work, Point(1, 2))
    assert await handle.result(DEADLINE_S) == [12, 13, True]
    history = await alpha.flows.admin.history(handle.id)
    assert history[0].name.endswith("move")
    assert (history[1].name, history[1].value) == ("a long way", {"x": 12, "y": 13})
    assert [step.place for step in history] == ["0", "1", "2"]
    assert [step.number for step in history] == [0, 1, 2]


async def test_a_step_that_is_done_is_not_done_again(nodes: FlowNodes) -> None:
    calls: list[int] = []

    @flow
    async def count(ctx: FlowContext) -> int:
        for number in range(10):
            await ctx.step(calls.append, number)
        await ctx.wait_for_signal("go", bool)
        for number in range(10, 20):
            await ctx.step(calls.append, number)
        return len(calls)

    alpha, handle = await nodes.begin(count)
    await alpha.until_steps(handle.id, 10)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == 20
    assert calls == list(range(20))


async def test_step_is_retried_up_to_max_attempts(nodes: FlowNodes) -> None:
    calls: list[str] = []

    async def flaky(failures: int, step_id: StepId = INJECTED) -> int:
        calls.append(step_id)
        if len(calls) <= failures:
            raise ValueError(f"call {len(calls)}")
        return len(calls)

    @flow
    async def try_hard(ctx: FlowContext, failures: int) -> str:
        try:
            return str(await ctx.step.with_options(retry=SOON)(flaky, failures=failures))
        except ValueError as error:
            return str(error)

    alpha = await nodes.start("alpha", try_hard)
    assert await alpha.run(try_hard, 3) == "4"
    assert len(set(calls)) == 1
    calls.clear()
    handle = await alpha.begin(try_hard, 100)
    assert await handle.result(DEADLINE_S) == "call 4"
    assert len(calls) == 4
    (failed,) = await alpha.flows.admin.history(handle.id)
    assert failed.error == "ValueError: call 4"


async def test_a_step_without_retry_is_tried_once(nodes: FlowNodes) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise KeyError("no")

    @flow
    async def try_once(ctx: FlowContext) -> str:
        try:
            await ctx.step(fail)
        except KeyError as error:
            return repr(error)
        return ""

    assert await nodes.run(try_once) == "KeyError('no')"
    assert calls == [1]


async def test_each_attempt_has_its_timeout(nodes: FlowNodes) -> None:
    calls: list[int] = []

    async def slow() -> str:
        calls.append(1)
        if len(calls) <= 2:
            await asyncio.Event().wait()
        return "in time"

    @flow
    async def hurry(ctx: FlowContext) -> list[str]:
        seen = []
        try:
            await ctx.step.with_options(timeout=0.02)(slow)
        except TimeoutError as error:
            seen.append(type(error).__name__)
        seen.append(await ctx.step.with_options(timeout=0.02, retry=SOON)(slow))
        return seen

    assert await nodes.run(hurry) == ["TimeoutError", "in time"]
    assert len(calls) == 3


async def test_a_result_that_cannot_be_written_down(nodes: FlowNodes) -> None:
    @flow
    async def odd(ctx: FlowContext) -> str:
        try:
            await ctx.step(object)
        except SerializationError as error:
            return str(error)
        return ""

    @flow
    async def very_odd(ctx: FlowContext) -> object:
        return object()

    alpha = await nodes.start("alpha", odd, very_odd)
    text = await alpha.run(odd)
    assert "what step 'object' returned cannot be serialized" in text
    handle = await alpha.begin(very_odd)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "the result of very_odd cannot be serialized" in str(parked.error)


async def test_arguments_of_a_flow_that_cannot_be_written_down(nodes: FlowNodes) -> None:
    @flow
    async def take(ctx: FlowContext, thing: object) -> None:
        await ctx.sleep(0)

    alpha = await nodes.start("alpha", take)
    with pytest.raises(SerializationError, match="an argument of flow 'take' cannot be serialized"):
        await alpha.begin(take, object())
    assert await alpha.flows.admin.list() == []


async def test_step_errors_are_restored(nodes: FlowNodes) -> None:
    class Local(Exception):
        """Nobody can find this class later."""

    async def fail(which: int) -> None:
        raise [Sold("tea", 3), OSError(2, "gone"), Stubborn(reason="so"), Local("here")][which]

    @flow
    async def fail_in_all_ways(ctx: FlowContext) -> list[str]:
        seen = []
        try:
            await ctx.step(fail, 0)
        except Sold as error:
            seen.append(f"{error.item} {error.remaining}")
        try:
            await ctx.step(fail, 1)
        except FileNotFoundError as error:
            seen.append(f"{error.errno} {error.strerror}")
        for which in (2, 3):
            try:
                await ctx.step(fail, which)
            except StepFailedError as failed:
                seen.append(f"{failed.kind.rpartition('.')[2]} {failed.detail}")
        await ctx.wait_for_signal("go", bool)
        return seen

    alpha, handle = await nodes.begin(fail_in_all_ways)
    await alpha.until_steps(handle.id, 4)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", True)
    seen = await alpha.result(handle.id)
    assert seen[:2] == ["tea 3", "2 gone"]
    assert seen[2].endswith("Stubborn so") and seen[3].endswith("Local here")


async def test_the_id_of_a_step_stays_the_same(nodes: FlowNodes) -> None:
    seen: list[str] = []
    is_free = asyncio.Event()

    async def note(step_id: StepId = INJECTED) -> str:
        seen.append(step_id)
        if len(seen) < 3:
            raise ConnectionError("not yet")
        await is_free.wait()
        return step_id

    @flow
    async def identify(ctx: FlowContext) -> list[str]:
        first = await ctx.step.with_options(retry=SOON)(note)
        second, third = await ctx.gather(ctx.step(note), ctx.step(note))
        return [first, second, third]

    alpha, handle = await nodes.begin(identify)
    for count in (3, 4):
        await until_length(seen, count)
        await alpha.restart_flows()
    await alpha.restart()
    is_free.set()
    ids = await alpha.result(handle.id)
    assert ids == [f"alpha/{handle.id}/1/{place}" for place in ("0", "1.0.0", "1.1.0")]
    assert set(seen) == set(ids)


async def until_length(seen: list[str], count: int) -> None:
    async def is_there() -> bool:
        return len(seen) >= count

    await eventually(is_there, f"there are {count}")


def copy_of(texts: list[str]) -> list[str]:
    return list(texts)


async def test_now_random_and_uuid_are_the_same_when_code_is_run_again(nodes: FlowNodes) -> None:
    @flow
    async def chance(ctx: FlowContext) -> list[list[str]]:
        seen: list[str] = []
        for _ in range(4):
            seen += [str(ctx.uuid()), ctx.now().isoformat(), str(ctx.random().random())]
            await ctx.sleep(0.002)
        noted = await ctx.step(copy_of, seen)
        await ctx.wait_for_signal("go", bool)
        return [seen, noted]

    alpha = await nodes.start("alpha", chance)
    first, second = await alpha.begin(chance), await alpha.begin(chance)
    for handle in (first, second):
        await alpha.until_steps(handle.id, 5)
    await alpha.restart()
    results = []
    for handle in (first, second):
        await alpha.flows.signal(handle.id, "go", True)
        seen, noted = await alpha.result(handle.id)
        assert seen == noted
        assert len(set(seen)) == 12
        assert seen[1::3] == sorted(seen[1::3])
        results.append(seen)
    assert not set(results[0][::3]) & set(results[1][::3])


async def test_invalid_step_error_names_cause(nodes: FlowNodes) -> None:
    async def confused(tx: SyncTransaction = INJECTED) -> None:
        raise AssertionError(tx)

    async def confused_too(connection: StoreConnection = INJECTED) -> None:
        raise AssertionError(connection)

    @flow
    async def run_them(ctx: FlowContext) -> list[str]:
        seen = []
        for function in (confused, confused_too):
            try:
                await ctx.step(function)
            except PostroadError as error:
                seen.append(str(error))
        return seen

    first, second = await nodes.run(run_them)
    assert "injects a SyncTransaction, so it must be a `def`" in first
    assert "injects a StoreConnection, so it must be a `def`" in second
