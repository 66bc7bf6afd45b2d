"""The flows of a node, from outside of it: looked at while it runs, changed while it does not.

What the commands of `postroad flow` do, integration/cli/test_flows.py tells.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from postroad.admin.flows import FlowStatus, changing_flows, reading_flows
from postroad.core.errors import ConfigError, StoreLockedError, UsageError
from postroad.durable import DurableQueues, SqliteStore, StaticPeerDirectory, store_from_url
from postroad.flows import (
    FlowContext,
    FlowNotFoundError,
    FlowsConfig,
    FlowService,
    FlowSession,
    PeerFlowFailedError,
    flow,
    responder,
)
from postroad.flows.admin import load_flow_state
from postroad.flows.engine import tables
from postroad.flows.machine.failure_policy import CRASHES_ALONE_MAX
from postroad.net import MessagingService
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.postgres import fresh_database

done: list[str] = []
is_broken = True


@flow
async def wait_for_word(ctx: FlowContext) -> str:
    """Does a step, and waits for a signal."""
    await ctx.step(done.append, "began")
    ctx.set_progress("waits for a word")
    return await ctx.wait_for_signal("word", str)


@flow
async def break_down(ctx: FlowContext, text: str) -> str:
    """Fails at its second step, for a reason that only an operator can mend."""
    await ctx.step(done.append, text)
    return await ctx.step(mend)


def mend() -> str:
    if is_broken:
        raise ValueError("no paper\nin the machine")
    return "mended"


@flow
async def ask(ctx: FlowContext, peer: str) -> str:
    return await ctx.open_session(peer).send_and_receive("how long?", str)


@responder(ask)
async def answer(ctx: FlowContext, session: FlowSession) -> None:
    await session.receive(str)
    await ctx.wait_for_signal("never", str)


@asynccontextmanager
async def running(location: Path | str) -> AsyncIterator[FlowService]:
    """Node alpha with its flows."""
    async with (
        MessagingService("demo", "alpha") as service,
        DurableQueues(
            service, store_from_url(str(location)), directory=StaticPeerDirectory()
        ) as mail,
        FlowService(mail, [wait_for_word, break_down, ask, answer]) as flows,
    ):
        yield flows


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global is_broken
    is_broken = True
    done.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "alpha.db"


async def until(flows: FlowService, id: str, status: FlowStatus) -> None:
    """Wait until a flow is of a status, in the store too."""

    async def is_there() -> bool:
        return id in [it.id for it in await flows.admin.list(status)]

    await eventually(is_there, f"flow {id} is {status}")


async def leave_waiting(location: Path | str) -> str:
    """The id of a flow that waits for a word, at a node that was stopped."""
    async with running(location) as flows:
        handle = await flows.start_flow_with_id("first", wait_for_word)
        await eventually(lambda: flows.admin.history(handle.id), "its first step is done")
    return handle.id


async def leave_parked(path: Path) -> str:
    async with running(path) as flows:
        handle = await flows.start_flow(break_down, "once")
        await until(flows, handle.id, FlowStatus.PARKED)
    return handle.id


async def test_flows_are_seen_beside_a_running_node(path: Path) -> None:
    async with running(path) as flows:
        handle = await flows.start_flow(break_down, "once")
        await until(flows, handle.id, FlowStatus.PARKED)
        async with reading_flows(str(path)) as first, reading_flows(str(path)) as second:
            assert await first.list() == await flows.admin.list()
            shown = await flows.admin.show(handle.id)
            # Where no code is, nobody knows what its parameters are called.
            unnamed = msgspec.structs.replace(shown, arguments=[["once"], {}])
            assert await second.show(handle.id) == unnamed
            assert await second.history(handle.id) == await flows.admin.history(handle.id)
            (step,) = await first.history(handle.id)
            assert (step.kind, step.name) == ("step", "list.append")


async def test_what_is_looked_at_is_not_changed(path: Path) -> None:
    id = await leave_waiting(path)
    async with reading_flows(str(path)) as flows:
        before = await flows.show(id)
        for change in (
            flows.kill(id),
            flows.resume(id),
            flows.fork(id, 0),
            flows.delete("first"),
        ):
            with pytest.raises(UsageError, match="use changing_flows"):
                await change
        assert await flows.list() == [msgspec.structs.replace(before, arguments=None)]


async def test_lists_are_narrowed_down(path: Path) -> None:
    parked = await leave_parked(path)
    waiting = await leave_waiting(path)
    async with reading_flows(str(path)) as flows:
        assert [it.id for it in await flows.list()] == [waiting, parked]
        assert [it.id for it in await flows.list("parked")] == [parked]
        assert [it.id for it in await flows.list(name="wait_for_word")] == [waiting]
        assert [it.id for it in await flows.list(before=waiting)] == [parked]
        assert await flows.all_of(FlowStatus.PARKED) == [parked]
        with pytest.raises(ConfigError, match="status='odd' must be one of"):
            await flows.list("odd")


async def test_store_that_never_had_flows(path: Path) -> None:
    async with (
        MessagingService("demo", "alpha") as service,
        DurableQueues(service, SqliteStore(path), directory=StaticPeerDirectory()),
    ):
        pass
    for opening in (reading_flows, changing_flows):
        async with opening(str(path)) as flows:
            assert await flows.list() == []
            with pytest.raises(FlowNotFoundError, match="this store never had flows"):
                await flows.show("1")


async def test_paused_flow_rests_until_it_is_resumed(path: Path) -> None:
    id = await leave_waiting(path)
    async with changing_flows(str(path)) as flows:
        await flows.pause(id)
    async with running(path) as flows:
        assert (await flows.admin.show(id)).status is FlowStatus.PAUSED
        await flows.signal(id, "word", "hello")
    async with changing_flows(str(path)) as flows:
        await flows.resume(id)
    async with running(path) as flows:
        assert await (await flows.get_handle(id)).result(timeout=DEADLINE_S) == "hello"
    assert done == ["began"]


async def test_peer_of_a_killed_flow_is_told(path: Path) -> None:
    async with running(path) as flows:
        asking = await flows.start_flow(ask, "alpha")

        async def is_asked() -> bool:
            views = await flows.admin.list(name="answer")
            return bool(views) and bool(await flows.admin.history(views[0].id))

        await eventually(is_asked, "somebody answers")
        answering = await flows.admin.list(name="answer")
    async with changing_flows(str(path)) as others:
        await others.kill(answering[0].id)
    async with running(path) as flows:
        with pytest.raises(PeerFlowFailedError):
            await (await flows.get_handle(asking.id)).result(timeout=DEADLINE_S)
        failed = await flows.admin.show(asking.id)
    async with reading_flows(str(path)) as others:
        killed = await others.show(answering[0].id)
    assert failed.error_id == killed.error_id
    assert killed.ended_at is not None


async def test_parked_flow_is_tried_again_however_often_its_process_died(path: Path) -> None:
    global is_broken
    id = await leave_parked(path)
    async with changing_flows(str(path)) as flows:
        state = await load_flow_state(flows.store, id)
        state.crash_recoveries, state.crashes_alone = (
            FlowsConfig().crash_recoveries_max + 1,
            CRASHES_ALONE_MAX,
        )
        row = tables.state_row(state)
        await flows.store.write(
            lambda ledger: tables.update_state(ledger.database, row, with_arguments=False)
        )
    async with running(path) as running_flows:
        assert (await running_flows.admin.show(id)).status is FlowStatus.PARKED
    async with changing_flows(str(path)) as flows:
        await flows.retry(id)
        assert (await flows.show(id)).status is FlowStatus.RUNNING
        with pytest.raises(UsageError, match=f"flow {id}: .* cannot retry"):
            await flows.retry(id)
    is_broken = False
    async with running(path) as flows:
        assert await (await flows.get_handle(id)).result(timeout=DEADLINE_S) == "mended"
    assert done == ["once"]


async def test_fork_goes_on_from_a_step_as_another_flow(path: Path) -> None:
    global is_broken
    id = await leave_parked(path)
    async with changing_flows(str(path)) as flows:
        copy = await flows.fork(id, 1)
        assert copy not in (id, "")
        assert await flows.history(copy) == await flows.history(id)
        with pytest.raises(UsageError, match="from step 7: it has steps 0 to"):
            await flows.fork(id, 7)
        await flows.kill(id)
    is_broken = False
    async with running(path) as flows:
        assert await (await flows.get_handle(copy)).result(timeout=DEADLINE_S) == "mended"
        handle = await flows.start_flow(break_down, "twice")
        assert handle.id > copy > id
        assert await handle.result(timeout=DEADLINE_S) == "mended"
    assert done == ["once", "twice"]


@pytest.mark.slow
async def test_same_in_a_database_of_a_server() -> None:
    with fresh_database() as dsn:
        id = await leave_waiting(dsn)
        async with running(dsn), reading_flows(dsn) as flows:
            assert [it.id for it in await flows.list()] == [id]
            with pytest.raises(
                StoreLockedError, match="or leave out --store: node alpha does this"
            ):
                async with changing_flows(dsn):
                    pytest.fail("it was opened")
        async with changing_flows(dsn) as flows:
            await flows.signal(id, "word", "hello")
        async with running(dsn) as flows_of_node:
            assert await (await flows_of_node.get_handle(id)).result(timeout=DEADLINE_S) == "hello"


async def test_looking_and_changing_count_for_nothing(path: Path) -> None:
    """Neither is a start of the node: nothing is tried, and nobody seems to have died."""
    id = await leave_parked(path)
    async with reading_flows(str(path)) as flows:
        before = await flows.show(id)
        states = await load_flow_state(flows.store, id)
    async with changing_flows(str(path)) as flows:
        assert await flows.show(id) == before
        assert (await load_flow_state(flows.store, id)).crash_recoveries == states.crash_recoveries


async def test_id_that_is_none(path: Path) -> None:
    await leave_parked(path)
    async with reading_flows(str(path)) as flows:
        for id in ("7", "no id", "7" * 16, "f" * 16, "f" * 40):
            with pytest.raises(FlowNotFoundError):
                await flows.show(id)
