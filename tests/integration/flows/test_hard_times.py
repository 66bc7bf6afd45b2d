"""Full disks, full outboxes, floods and letters of strangers: flows wait, and nothing is lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from postroad.core.errors import PostroadError, UsageError
from postroad.durable import MemoryDisk, MemoryStore, Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowDefinition,
    FlowService,
    FlowSession,
    FlowStatus,
    PeerFlowFailedError,
    SessionEndedError,
    SignalBufferFullError,
    StepId,
    flow,
    responder,
)
from postroad.flows.engine import admission
from postroad.flows.machine.state import parse_flow_id
from postroad.flows.sessions.messages import (
    QUEUE,
    SessionClose,
    SessionData,
    SessionEnvelope,
    SessionInit,
    SessionKey,
    encode_session_envelope,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import QUICK, until_dead, until_empty
from tests.support.flows.nodes import FlowNodes


@flow
async def wait_for_go(ctx: FlowContext) -> int:
    return await ctx.wait_for_signal("go", int)


async def test_a_full_disk_delays_flows_and_changes_nothing(nodes: FlowNodes) -> None:
    disk = MemoryDisk()
    is_filled = asyncio.Event()

    async def create(tx: Transaction = INJECTED) -> None:
        await tx.execute("CREATE TABLE books (step TEXT)")

    async def book(tx: Transaction = INJECTED, step_id: StepId = INJECTED) -> None:
        await tx.execute("INSERT INTO books VALUES (?)", (step_id,))

    async def fill_disk() -> None:
        disk.is_full = not is_filled.is_set()
        is_filled.set()

    @flow
    async def work(ctx: FlowContext, peer: str) -> list[int]:
        await ctx.step(create)
        session = ctx.open_session(peer)
        numbers = []
        for number in range(5):
            if number == 2:
                await ctx.step(fill_disk)
            await ctx.step(book)
            numbers.append(await session.send_and_receive(number, int))
        return numbers

    @responder(work)
    async def reply(ctx: FlowContext, session: FlowSession) -> None:
        for _ in range(5):
            await session.send(10 * await session.receive(int))

    alpha = await nodes.start("alpha", work, make_store=lambda: MemoryStore(disk))
    await nodes.start("beta", reply)
    handle = await alpha.begin(work, "beta")
    await is_filled.wait()
    await asyncio.sleep(0.2)
    disk.is_full = False
    assert await handle.result(DEADLINE_S) == [0, 10, 20, 30, 40]
    rows = await alpha.rows("SELECT step FROM books")
    assert len(rows) == len(set(rows)) == 5


async def test_unstartable_flow_raises(nodes: FlowNodes) -> None:
    disk = MemoryDisk()
    alpha = await nodes.start("alpha", wait_for_go, make_store=lambda: MemoryStore(disk))
    waiting = await alpha.begin(wait_for_go)
    disk.is_full = True
    with pytest.raises(PostroadError):
        await alpha.begin(wait_for_go)
    with pytest.raises(PostroadError):
        await alpha.flows.start_flow_with_id("order-7", wait_for_go)
    with pytest.raises(PostroadError):
        await alpha.flows.signal(waiting.id, "go", 1)
    disk.is_full = False
    handle = await alpha.flows.start_flow_with_id("order-7", wait_for_go)
    await alpha.flows.signal(handle.id, "go", 2)
    assert await handle.result(DEADLINE_S) == 2
    await alpha.flows.signal(waiting.id, "go", 3)
    assert await waiting.result(DEADLINE_S) == 3
    assert len(await alpha.flows.admin.list()) == 2


async def test_a_full_outbox_delays_flows(nodes: FlowNodes) -> None:
    @flow
    async def send_many(ctx: FlowContext, peer: str) -> int:
        session = ctx.open_session(peer)
        for number in range(10):
            await session.send(number)
            await ctx.sleep(0.001)
        return await session.receive(int)

    @responder(send_many)
    async def add_up(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(sum([await session.receive(int) for _ in range(10)]))

    small = msgspec.structs.replace(QUICK, outbox_messages_max=4)
    alpha = await nodes.start("alpha", send_many, mail_config=small)
    beta = await nodes.start("beta", add_up)
    await beta.stop()
    handle = await alpha.begin(send_many, "beta")
    await alpha.until_steps(handle.id, 7)
    await asyncio.sleep(0.1)
    assert (await alpha.flows.admin.show(handle.id)).status in (
        FlowStatus.RUNNING,
        FlowStatus.RETRYING,
    )
    await beta.start(alpha.station)
    assert await handle.result(DEADLINE_S) == 45


async def test_a_flood_of_messages_fails_the_session_and_not_the_node(nodes: FlowNodes) -> None:
    @flow
    async def flood(ctx: FlowContext, peer: str) -> str:
        session = ctx.open_session(peer)
        for number in range(50):
            await session.send(number)
        try:
            await session.receive(int)
        except PeerFlowFailedError as failed:
            return f"{failed.kind}: {failed}"
        return ""

    @responder(flood)
    async def drown(ctx: FlowContext, session: FlowSession) -> list[int]:
        await ctx.wait_for_signal("go", bool)
        numbers = []
        try:
            while True:
                numbers.append(await session.receive(int))
        except (PeerFlowFailedError, SessionEndedError):
            return numbers

    alpha, beta = await nodes.pair(flood, drown, session_buffer_max=20)
    text = await alpha.run(flood, "beta")
    assert text.startswith("Overflow: ")
    assert "more than 20 messages wait to be received" in text
    (drowned,) = await beta.until_listed("drown", FlowStatus.RUNNING)
    await beta.restart_flows()
    await beta.flows.signal(drowned.id, "go", True)
    assert await beta.result(drowned.id) == list(range(20))


@flow
async def listen(ctx: FlowContext, peer: str) -> list[str]:
    session = ctx.open_session(peer)
    await session.send("begin")
    texts = []
    try:
        while True:
            texts.append(await session.receive(str))
    except SessionEndedError:
        return texts


@responder(listen)
async def speak(ctx: FlowContext, session: FlowSession) -> list[str]:
    texts = [await session.receive(str)]
    await session.send("from beta")
    await ctx.wait_for_signal("go", bool)
    await session.close()
    return texts


async def test_session_messages_of_other_nodes_are_ignored(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(listen, speak)
    gamma = await nodes.start("gamma", speak)
    handle = await alpha.begin(listen, "beta")
    (speaking,) = await beta.until_listed("speak", FlowStatus.RUNNING)
    key = SessionKey(parse_flow_id(handle.id), 1)
    forged = msgspec.msgpack.encode("from gamma")
    to_alpha = SessionEnvelope(key, True, [SessionData(forged), SessionClose()])
    await gamma.station.mail.send(QUEUE, encode_session_envelope(to_alpha), to="alpha")
    for message in (SessionData(forged), SessionClose()):
        envelope = SessionEnvelope(key, False, [message])
        await gamma.station.mail.send(QUEUE, encode_session_envelope(envelope), to="beta")
    await until_empty(gamma.station.mail, "alpha", "beta")
    await alpha.restart_flows()
    await beta.restart_flows()
    await beta.flows.signal(speaking.id, "go", True)
    assert await alpha.result(handle.id) == ["from beta"]
    assert await beta.result(speaking.id) == ["begin"]
    # What is for nobody is gone.
    for node in (alpha, beta):
        assert await node.station.mail.dead_letters.list() == []
        assert await node.station.mail.admin.peek(QUEUE) == []


async def test_invalid_session_messages_are_dead_letters(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(listen, speak)
    bodies = [
        b"",
        b"nonsense",
        msgspec.msgpack.encode([[1, 1], False, []]),
        encode_session_envelope(SessionEnvelope(SessionKey(-1, 1), False, [SessionClose()])),
        encode_session_envelope(
            SessionEnvelope(SessionKey(1, 1), True, [SessionInit("listen", 1, "")])
        ),
        encode_session_envelope(
            SessionEnvelope(SessionKey(1, 1), False, [SessionClose(), SessionInit("listen", 1, "")])
        ),
    ]
    for body in bodies:
        await alpha.station.mail.send(QUEUE, body, to="beta")
    await until_dead(beta.station.mail, len(bodies))
    handle = await alpha.begin(listen, "beta")
    (speaking,) = await beta.until_listed("speak", FlowStatus.RUNNING)
    await beta.flows.signal(speaking.id, "go", True)
    assert await handle.result(DEADLINE_S) == ["from beta"]


async def test_a_session_that_is_opened_twice_has_one_flow(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(listen, speak)
    payload = msgspec.msgpack.encode("begin")
    envelope = SessionEnvelope(SessionKey(77, 1), False, [SessionInit("listen", 1, "", payload)])
    for _ in range(3):
        await alpha.station.mail.send(QUEUE, encode_session_envelope(envelope), to="beta")
        await until_empty(alpha.station.mail, "beta")
    (speaking,) = await beta.until_listed("speak", FlowStatus.RUNNING)
    await beta.restart_flows()
    await alpha.station.mail.send(QUEUE, encode_session_envelope(envelope), to="beta")
    await until_empty(alpha.station.mail, "beta")
    await beta.flows.signal(speaking.id, "go", True)
    assert await beta.result(speaking.id) == ["begin"]
    assert len(await beta.flows.admin.list()) == 1


async def test_only_one_program_has_the_flows_of_a_node(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(wait_for_go)
    second = FlowService(alpha.station.mail, [wait_for_go], nodes.config)
    with pytest.raises(UsageError, match="a node has one FlowService"):
        await second.start()
    with pytest.raises(UsageError, match="runs already"):
        await alpha.flows.start()
    with pytest.raises(UsageError, match="is not running: start"):
        await second.start_flow(wait_for_go)
    await alpha.flows.signal(handle.id, "go", 1)
    assert await handle.result(DEADLINE_S) == 1
    await alpha.flows.stop()
    async with second:
        assert len(await second.admin.list()) == 1
    await alpha.flows.start()


async def test_cancelled_result_wait_does_not_affect_flow(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(wait_for_go)
    first, second = [asyncio.ensure_future(handle.result()) for _ in range(2)]
    await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await alpha.flows.signal(handle.id, "go", 1)
    assert await asyncio.wait_for(second, 10) == 1


async def test_unread_signals_beyond_limit_are_rejected(nodes: FlowNodes) -> None:
    @flow
    async def hoard(ctx: FlowContext) -> list[int]:
        await ctx.wait_for_signal("go", bool)
        numbers = [await ctx.wait_for_signal("number", int) for _ in range(3)]
        return numbers if len(numbers) == 3 else [await ctx.wait_for_signal("other", int)]

    alpha = await nodes.start("alpha", hoard, signal_buffer_max=3)
    handle = await alpha.begin(hoard)
    for number in range(3):
        await alpha.flows.signal(handle.id, "number", number)
    await alpha.restart_flows()
    for name in ("number", "other"):
        with pytest.raises(
            SignalBufferFullError, match=f"to flow {handle.id}: 3 signals are buffered"
        ):
            await alpha.flows.signal(handle.id, name, 3)
    # What it waits for is not one of them.
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == [0, 1, 2]


# More flows than are read at once.

MANY = 5


def make_task(concurrency: int | None, *, is_broken: bool = False) -> FlowDefinition[[int], int]:
    @flow(name="task", concurrency=concurrency)
    async def task(ctx: FlowContext, number: int) -> int:
        if is_broken:
            raise LookupError("nobody knows")
        return number

    return task


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_PAGE_SIZE", 2)


@pytest.mark.usefixtures("few_at_once")
async def test_all_parked_flows_are_tried_again_by_the_next_start(nodes: FlowNodes) -> None:
    broken = make_task(None, is_broken=True)
    alpha = await nodes.start("alpha", broken)
    handles = [await alpha.begin(broken, number) for number in range(MANY)]
    await alpha.until_listed("task", FlowStatus.PARKED, MANY)
    await alpha.restart_flows(make_task(None))
    assert [await alpha.result(handle.id) for handle in handles] == list(range(MANY))


@pytest.mark.usefixtures("few_at_once")
async def test_all_queued_flows_start_without_limit(nodes: FlowNodes) -> None:
    @flow(name="task", concurrency=1)
    async def wait(ctx: FlowContext, number: int) -> int:
        await ctx.sleep(3600)
        return number

    alpha = await nodes.start("alpha", wait)
    _, *queued = [await alpha.begin(wait, number) for number in range(MANY + 1)]
    await alpha.until_listed("task", FlowStatus.QUEUED, MANY)
    await alpha.restart_flows(make_task(None))
    assert [await alpha.result(handle.id) for handle in queued] == list(range(1, MANY + 1))


@pytest.mark.usefixtures("few_at_once")
async def test_all_held_flows_start_after_undrain(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(listen, speak)
    await beta.flows.execution.drain(timeout=0)
    handles = [await alpha.begin(listen, "beta") for _ in range(MANY)]
    held = await beta.until_listed("speak", FlowStatus.HELD, MANY)
    await beta.flows.execution.undrain()
    for view in held:
        await beta.until(view.id, FlowStatus.RUNNING)
        await beta.flows.signal(view.id, "go", True)
    for handle in handles:
        assert await alpha.result(handle.id) == ["from beta"]
