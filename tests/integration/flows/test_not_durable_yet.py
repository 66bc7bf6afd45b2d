"""Whoever looks while something is on its way to the disk: nobody learns of what can be undone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from postroad.core import fault_points as faults
from postroad.core.errors import UsageError
from postroad.flows import FlowContext, FlowSession, FlowStatus, flow, responder
from postroad.flows.machine.events import SignalReceived
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNode, FlowNodes


@contextmanager
def slow_disk() -> Iterator[threading.Event]:
    """Commits wait until the event is set; all of them do at the end."""
    is_allowed = threading.Event()

    def wait(**details: Any) -> None:
        assert is_allowed.wait(DEADLINE_S)

    with faults.arm_fault_point("durable.commit.before", wait):
        try:
            yield is_allowed
        finally:
            is_allowed.set()


class Watcher:
    """Does something when a flow has taken up an event, and nothing of that is durable."""

    def __init__(self, kind: type, make: Any) -> None:
        self._kind = kind
        self._make = make
        self.has_begun = asyncio.Event()
        self.task: asyncio.Task[Any] | None = None

    def __call__(self, flow: int, event: object) -> None:
        if isinstance(event, self._kind) and self.task is None:
            work: Coroutine[Any, Any, Any] = self._make()
            self.task = asyncio.get_running_loop().create_task(work)
            self.has_begun.set()


async def while_it_is_written(node: FlowNode, id: str, make: Any) -> Any:
    """What comes of something that is done while the signal "go" is not durable yet."""
    loop = asyncio.get_running_loop()
    watcher = Watcher(SignalReceived, make)
    with slow_disk() as is_allowed, faults.arm_fault_point("flows.event.handled", watcher):
        signalling = loop.create_task(node.flows.signal(id, "go", True))
        await watcher.has_begun.wait()
        assert watcher.task is not None
        # Time enough for whoever does not wait for the disk.
        done, _ = await asyncio.wait((watcher.task,), timeout=0.1)
        is_early = bool(done)
        assert not signalling.done()
        is_allowed.set()
        await signalling
        return is_early, await watcher.task


@flow
async def ends(ctx: FlowContext) -> str:
    signals: list[bool] = []
    ctx.set_query_handler("heard", lambda: list(signals))
    signals.append(await ctx.wait_for_signal("go", bool))
    ctx.set_progress("heard")
    await ctx.wait_for_signal("end", bool)
    return "ended"


@flow
async def ends_at_once(ctx: FlowContext) -> str:
    await ctx.wait_for_signal("go", bool)
    return "ended"


async def test_a_flow_is_shown_as_it_is_in_the_store(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(ends_at_once)
    is_early, view = await while_it_is_written(
        alpha, handle.id, lambda: alpha.flows.admin.show(handle.id)
    )
    assert not is_early or view.status is FlowStatus.RUNNING
    assert await alpha.result(handle.id) == "ended"
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.COMPLETED


async def test_a_query_is_answered_when_the_answer_is_durable(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(ends)
    is_early, signals = await while_it_is_written(
        alpha, handle.id, lambda: alpha.flows.query(handle.id, "heard")
    )
    assert signals == ([] if is_early else [True])
    await alpha.flows.signal(handle.id, "end", True)
    assert await alpha.result(handle.id) == "ended"


async def test_a_flow_that_is_about_to_end_cannot_be_killed(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(ends_at_once)

    async def kill() -> str:
        try:
            await alpha.flows.admin.kill(handle.id)
        except UsageError as error:
            return str(error)
        return "killed"

    is_early, text = await while_it_is_written(alpha, handle.id, kill)
    assert not is_early
    assert text == f"flow {handle.id} has ended: it is done"
    assert await alpha.result(handle.id) == "ended"


async def test_fork_of_flow_that_continues_as_new(nodes: FlowNodes) -> None:
    @flow
    async def counts(ctx: FlowContext, number: int) -> int:
        await ctx.step(str, number)
        await ctx.wait_for_signal("go", bool)
        if number < 2:
            ctx.continue_as_new(number + 1)
        return number

    alpha, handle = await nodes.begin(counts, 1)
    await alpha.until_steps(handle.id, 1)
    _, copy = await while_it_is_written(
        alpha, handle.id, lambda: alpha.flows.admin.fork(handle.id, 1)
    )
    for id in (copy, copy, handle.id):
        await alpha.flows.signal(id, "go", True)
    assert await alpha.result(copy) == 2
    assert await alpha.result(handle.id) == 2


async def test_result_is_resolved_during_late_session_message(nodes: FlowNodes) -> None:
    @flow
    async def shouts(ctx: FlowContext) -> str:
        await ctx.open_session("beta").send("hey")
        return "shouted"

    @responder(shouts)
    async def listens(ctx: FlowContext, session: FlowSession) -> None:
        await session.receive(str)

    alpha, beta = await nodes.pair(shouts, listens)
    await beta.flows.execution.drain()
    handle = await alpha.begin(shouts)
    assert await alpha.result(handle.id) == "shouted"
    await beta.until_listed("listens", FlowStatus.HELD)
    await alpha.restart_flows()
    again = await alpha.flows.get_handle(handle.id)
    waiter: asyncio.Future[asyncio.Task[str]] = asyncio.get_running_loop().create_future()

    def on_letter(peer: str) -> None:
        waiter.set_result(asyncio.get_running_loop().create_task(again.result(DEADLINE_S)))

    with faults.arm_fault_point("flows.session.received", on_letter):
        await beta.flows.execution.undrain()
        assert await (await waiter) == "shouted"
