"""Flows that meet errors: tried again, parked, and mended."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial

import pytest

from postroad.core.errors import StoreUnavailableError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.flows import (
    FlowContext,
    FlowError,
    FlowSession,
    FlowStatus,
    PeerFlowFailedError,
    SessionEndedError,
    flow,
    responder,
)
from postroad.flows.machine.failure_policy import CRASHES_ALONE_MAX
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.mail_pairs import until_empty
from tests.support.flows.nodes import FlowNodes


class Shaky:
    """A function that fails as often as it is told to."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return self.calls


TRANSIENT = [
    ConnectionError("no route"),
    TimeoutError("too slow"),
    StoreUnavailableError("disk full"),
    sqlite3.OperationalError("database is locked"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__)
async def test_an_error_that_may_pass_is_tried_again(nodes: FlowNodes, error: Exception) -> None:
    before, shaky = Shaky(0, error), Shaky(3, error)

    @flow
    async def work(ctx: FlowContext) -> list[int]:
        return [
            await ctx.step.with_options(name="before")(before),
            await ctx.step.with_options(name="shaky")(shaky),
        ]

    alpha = await nodes.start("alpha", work, max_attempts=4)
    handle = await alpha.begin(work)
    assert await handle.result(DEADLINE_S) == [1, 4]
    assert before.calls == 1
    shown = await alpha.flows.admin.show(handle.id)
    assert (shown.attempts, shown.error) == (0, None)
    # What went wrong and did not matter in the end is no part of its history.
    assert [step.error for step in await alpha.flows.admin.history(handle.id)] == [None, None]


async def test_after_so_many_attempts_an_operator_must_look(nodes: FlowNodes) -> None:
    shaky = Shaky(1000, ConnectionError("no route"))

    @flow
    async def work(ctx: FlowContext) -> int:
        return await ctx.step.with_options(name="shaky")(shaky)

    alpha = await nodes.start("alpha", work, max_attempts=3)
    handle = await alpha.begin(work)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert parked.error == "ConnectionError: no route"
    assert "raise self.error" in str(parked.detail)
    assert shaky.calls == 3
    await alpha.flows.admin.retry(handle.id)
    await alpha.until(handle.id, FlowStatus.PARKED)
    assert shaky.calls == 6
    shaky.failures = 0
    await alpha.flows.admin.retry(handle.id)
    assert await handle.result(DEADLINE_S) == 7


async def test_progress_gives_new_attempts(nodes: FlowNodes) -> None:
    @flow
    async def work(ctx: FlowContext) -> list[int]:
        return [
            await ctx.step.with_options(name=f"shaky {index}")(function)
            for index, function in enumerate(all_shaky)
        ]

    all_shaky = [Shaky(2, ConnectionError("no route")) for _ in range(4)]
    alpha = await nodes.start("alpha", work, max_attempts=3)
    assert await alpha.run(work) == [3, 3, 3, 3]


async def test_flow_during_retry_delay(nodes: FlowNodes) -> None:
    shaky = Shaky(1, ConnectionError("no route"))

    @flow
    async def work(ctx: FlowContext) -> int:
        return await ctx.step.with_options(name="shaky")(shaky)

    alpha = await nodes.start("alpha", work, retry_initial_delay_s=1000.0, retry_max_delay_s=1000.0)
    handle = await alpha.begin(work)
    retrying = await alpha.until(handle.id, FlowStatus.RETRYING)
    assert (retrying.error, retrying.attempts) == ("ConnectionError: no route", 1)
    assert retrying.wakes_at is not None and retrying.wakes_at > retrying.started_at + 100
    await alpha.restart()
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.RETRYING
    assert shaky.calls == 1
    await alpha.flows.admin.retry(handle.id)
    assert await alpha.result(handle.id) == 2


async def test_an_error_of_the_code_itself_is_tried_again_too(nodes: FlowNodes) -> None:
    runs: list[int] = []
    steps: list[int] = []

    @flow
    async def work(ctx: FlowContext) -> str:
        await ctx.step(steps.append, 1)
        runs.append(1)
        if len(runs) < 4:
            raise ConnectionError("raised between steps")
        return "through"

    assert await nodes.run(work) == "through"
    assert steps == [1]


async def test_a_parked_flow_goes_on_with_mended_code(nodes: FlowNodes) -> None:
    calls: list[str] = []

    async def divide(number: int) -> float:
        calls.append("divide")
        return 1 / number

    @flow(name="work")
    async def broken(ctx: FlowContext, peer: str) -> float:
        session = ctx.open_session(peer)
        number = await session.send_and_receive("a number", int)
        await ctx.step(calls.append, "before")
        return await ctx.step(divide, number)

    @flow(name="work")
    async def mended(ctx: FlowContext, peer: str) -> float:
        session = ctx.open_session(peer)
        number = await session.send_and_receive("a number", int)
        await ctx.step(calls.append, "before")
        return await ctx.step(divide, number + 4)

    @responder("work")
    async def reply(ctx: FlowContext, session: FlowSession) -> str:
        await session.receive(str)
        await session.send(0)
        try:
            return await session.receive(str)
        except FlowError as error:
            return type(error).__name__

    alpha = await nodes.start("alpha", broken)
    beta = await nodes.start("beta", reply)
    handle = await alpha.begin(broken, "beta")
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert parked.error == "ZeroDivisionError: division by zero"
    assert "in divide" in str(parked.detail)
    (replying,) = await beta.until_listed("reply", FlowStatus.RUNNING)
    await alpha.flows.admin.retry(handle.id)
    await alpha.until(handle.id, FlowStatus.PARKED)
    assert calls == ["before", "divide", "divide"]
    # A new start tries again by itself.
    await alpha.restart_flows(mended)
    assert await alpha.result(handle.id) == 0.25
    assert calls == ["before", "divide", "divide", "divide"]
    assert await beta.result(replying.id) == "SessionEndedError"
    assert (await alpha.flows.admin.show(handle.id)).error is None


async def test_messages_to_parked_flow_are_buffered(nodes: FlowNodes) -> None:
    @flow(name="work")
    async def ask(ctx: FlowContext, peer: str) -> int:
        session = ctx.open_session(peer)
        for number in range(5):
            await session.send(number)
            await ctx.wait_for_signal("next", bool)
        return await session.receive(int)

    @responder("work", name="reply")
    async def broken(ctx: FlowContext, session: FlowSession) -> None:
        await session.receive(int)
        raise LookupError("where is it?")

    @responder("work", name="reply")
    async def mended(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(sum([await session.receive(int) for _ in range(5)]))

    alpha = await nodes.start("alpha", ask)
    beta = await nodes.start("beta", broken)
    handle = await alpha.begin(ask, "beta")
    (parked,) = await beta.until_listed("reply", FlowStatus.PARKED)
    for _ in range(5):
        await alpha.flows.signal(handle.id, "next", True)
    await beta.restart_flows(mended)
    assert await handle.result(DEADLINE_S) == 10
    await beta.until(parked.id, FlowStatus.COMPLETED)


async def test_the_other_end_ends_while_a_flow_is_parked(nodes: FlowNodes) -> None:
    is_mended: list[bool] = []

    @flow
    async def say(ctx: FlowContext, peer: str) -> None:
        session = ctx.open_session(peer)
        await session.send(1)
        await ctx.wait_for_signal("end", bool)

    @responder(say)
    async def hear(ctx: FlowContext, session: FlowSession) -> list[str]:
        await ctx.sleep(0.001)
        if not is_mended:
            raise ValueError("not yet")
        texts = [str(await session.receive(int))]
        try:
            await session.receive(int)
        except SessionEndedError:
            texts.append("ended")
        return texts

    alpha, beta = await nodes.pair(say, hear)
    handle = await alpha.begin(say, "beta")
    (parked,) = await beta.until_listed("hear", FlowStatus.PARKED)
    await alpha.flows.signal(handle.id, "end", True)
    await handle.result(DEADLINE_S)
    await until_empty(alpha.station.mail, "beta")
    is_mended.append(True)
    await beta.flows.admin.retry(parked.id)
    assert await beta.result(parked.id) == ["1", "ended"]


async def test_a_failed_step_is_recorded_where_the_flow_lives_on(nodes: FlowNodes) -> None:
    shaky = Shaky(1, ValueError("first"))

    @flow
    async def work(ctx: FlowContext) -> int:
        try:
            return await ctx.step.with_options(name="shaky")(shaky)
        except ValueError:
            await ctx.wait_for_signal("go", bool)
            return await ctx.step.with_options(name="shaky")(shaky)

    alpha, handle = await nodes.begin(work)
    await alpha.until_steps(handle.id, 1)
    await alpha.restart()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == 2
    errors = [step.error for step in await alpha.flows.admin.history(handle.id)]
    assert errors == ["ValueError: first", None, None]


async def test_unrecorded_await_error_names_remedy(nodes: FlowNodes) -> None:
    with pytest.warns(UserWarning, match=r"asyncio\.sleep"):

        @flow
        async def naps(ctx: FlowContext) -> None:
            await asyncio.sleep(0.01)

    async def hidden() -> None:
        await asyncio.sleep(0)

    @flow
    async def naps_shortly(ctx: FlowContext) -> None:
        await hidden()

    alpha = await nodes.start("alpha", naps, naps_shortly)
    for definition, what in ((naps, "Future"), (naps_shortly, "the event loop")):
        handle = await alpha.begin(definition)
        parked = await alpha.until(handle.id, FlowStatus.PARKED)
        assert str(parked.error).startswith(f"UnrecordedAwaitError: the flow awaited {what}")
        assert "use ctx.sleep, ctx.gather and ctx.select" in str(parked.error)
        assert f"in {definition.name}" in str(parked.detail)


async def test_a_flow_that_comes_no_further_is_not_taken_up_for_ever(nodes: FlowNodes) -> None:
    begun: list[int] = []

    async def hang() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    @flow
    async def poison(ctx: FlowContext, peer: str) -> None:
        session = ctx.open_session(peer)
        await session.send("x")
        await ctx.step(hang)

    @responder(poison)
    async def reply(ctx: FlowContext, session: FlowSession) -> str:
        await session.receive(str)
        try:
            await session.receive(str)
        except PeerFlowFailedError as failed:
            return failed.error_id
        return ""

    @flow
    async def innocent(ctx: FlowContext) -> int:
        return await ctx.wait_for_signal("go", int)

    disk = MemoryDisk()

    async def crash_and_start() -> None:
        # What a process that is killed does not do either: write down that it has stopped.
        disk.is_read_only = True
        await alpha.stop_flows()
        disk.is_read_only = False
        await alpha.start_flows()

    alpha = await nodes.start(
        "alpha",
        poison,
        innocent,
        make_store=lambda: MemoryStore(disk),
        crash_recoveries_max=3,
        trial_s=0.02,
    )
    beta = await nodes.start("beta", reply)
    handle, other = await alpha.begin(poison, "beta"), await alpha.begin(innocent)

    async def has_begun() -> bool:
        return len(begun) > restarts

    ran = 4 + CRASHES_ALONE_MAX
    for restarts in range(ran):
        await eventually(has_begun, f"the function ran after {restarts} crashes")
        await crash_and_start()
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert f"the process died {ran} times while this flow made no progress" in str(parked.error)
    await crash_and_start()
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.PARKED
    assert len(begun) == ran
    # A flow that only waits has no part in it.
    await alpha.flows.signal(other.id, "go", 1)
    assert await alpha.result(other.id) == 1
    await alpha.flows.admin.retry(handle.id)
    restarts = ran
    await eventually(has_begun, "the function ran when an operator wanted it")
    await alpha.flows.admin.kill(handle.id)
    (replied,) = await beta.until_listed("reply", FlowStatus.COMPLETED)
    assert await beta.result(replied.id) == (await alpha.flows.admin.show(handle.id)).error_id


async def test_clean_stop_counts_no_crash(nodes: FlowNodes) -> None:
    begun: list[int] = []
    is_free = asyncio.Event()

    async def wait() -> str:
        begun.append(1)
        await is_free.wait()
        return "patient"

    @flow
    async def slow(ctx: FlowContext) -> str:
        return await ctx.step(wait)

    async def has_begun() -> bool:
        return len(begun) > restarts

    alpha = await nodes.start("alpha", slow, crash_recoveries_max=1)
    handle = await alpha.begin(slow)
    for restarts in range(4):
        await eventually(has_begun, f"the function ran after {restarts} restarts")
        await alpha.restart_flows()
    is_free.set()
    assert await alpha.result(handle.id) == "patient"


async def test_quick_kills_park_no_innocent_flow(nodes: FlowNodes) -> None:
    is_free = asyncio.Event()

    async def wait() -> str:
        await is_free.wait()
        return "patient"

    @flow
    async def slow(ctx: FlowContext) -> str:
        return await ctx.step(wait)

    disk = MemoryDisk()
    alpha = await nodes.start("alpha", slow, make_store=lambda: MemoryStore(disk), trial_s=0.05)
    handles = [await alpha.begin(slow) for _ in range(20)]
    for _ in range(9):
        disk.is_read_only = True
        await alpha.stop_flows()
        disk.is_read_only = False
        await alpha.start_flows()
        assert FlowStatus.PARKED not in await alpha.flows.admin.counts()
    shown = await alpha.flows.admin.show(handles[0].id)
    assert shown.status is FlowStatus.RETRYING
    assert "it is retried apart from others" in str(shown.error)
    is_free.set()
    assert [await alpha.result(handle.id) for handle in handles] == ["patient"] * 20


async def test_a_flow_that_was_tried_and_goes_on_is_not_suspected_any_more(
    nodes: FlowNodes,
) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    @flow
    async def slow(ctx: FlowContext) -> None:
        await ctx.step(hang)

    disk = MemoryDisk()
    make_store = partial(MemoryStore, disk)
    alpha = await nodes.start(
        "alpha", slow, make_store=make_store, trial_s=0.02, crash_recoveries_max=1
    )
    handle = await alpha.begin(slow)
    for _ in range(2):
        disk.is_read_only = True
        await alpha.stop_flows()
        disk.is_read_only = False
        await alpha.start_flows()
    assert (await alpha.state_of(handle.id)).is_suspect

    async def is_acquitted() -> bool:
        state = await alpha.state_of(handle.id)
        return state.status is FlowStatus.RUNNING and not state.is_suspect

    await eventually(is_acquitted, "it is not suspected any more")
    await alpha.flows.admin.kill(handle.id)
