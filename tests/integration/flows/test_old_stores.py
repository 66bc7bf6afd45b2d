"""Flows and messages that version 0.1 left in its stores go on where they were.

The dumps in `old_stores` are the stores of two nodes of version 0.1: with its first and its second
tables of flows in SQLite, and with the second in PostgreSQL. Its nodes had flows like those below
in its words (`Flow`, `flow.open`, `flow.call`). Alpha had begun each under a client id, and both
nodes were stopped when

- the flow had done the steps before the wait that is marked, and waited,
- "broken" was parked by its second step, which the next start tries again, "paused" was paused in
  its sleep, and "late", "killed" and "done" had ended,
- beta's consumer of `orders` had handled two messages, rejected one and failed at one,
- one message waited at beta, three at alpha for beta, and one behind a paused bridge to gamma.

To write such stores, run the flows with a checkout of that version, and dump the stores after a
`VACUUM`, or with `pg_dump --inserts`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from postroad.core.errors import MemberNotFoundError, OutboxFullError, ReplyTimeoutError
from postroad.durable import PostgresStore, RetryPolicy, SqliteStore, Store, Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowError,
    FlowKilledError,
    FlowsConfig,
    FlowSession,
    FlowStatus,
    FlowTimeoutError,
    PeerFlowFailedError,
    StepId,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import QUICK, Recorder, until_empty, until_waiting
from tests.support.flows.nodes import FlowNode, FlowNodes
from tests.support.servers.postgres import fresh_database

STORES = Path(__file__).parent / "old_stores"
# The stored idempotency keys and results are older than the limits by default.
AGES_S = 1e9
MAIL_CONFIG = msgspec.structs.replace(QUICK, idempotency_ttl_s=AGES_S)
CONFIG = FlowsConfig(retention_s=AGES_S, client_id_retention_s=AGES_S, max_attempts=2)

CALLS: list[str] = []
"""What functions of steps were called with."""


async def book(item: str, tx: Transaction = INJECTED, step_id: StepId = INJECTED) -> str:
    CALLS.append(item)
    await tx.execute(f"INSERT INTO bookings VALUES ('{item}', '{step_id}')")
    return item


async def note(text: str) -> str:
    CALLS.append(text)
    return text


async def ask_bank(number: int) -> None:
    CALLS.append(f"bank {number}")


async def break_down() -> None:
    CALLS.append("mended")


@flow
async def order(ctx: FlowContext, item: str, count: int = 1) -> list[str]:
    ctx.set_progress("booking")
    number = str(ctx.uuid())
    booked = await ctx.step(book, item)
    packing = ctx.step.with_options(name="packing")
    noted = await ctx.gather(ctx.step(note, number), packing(note, "b"))
    way = "new" if ctx.patched("faster") else "old"
    ctx.set_progress("waiting")
    go = await ctx.wait_for_signal("go", str)  # Here it was.
    await ctx.step(book, f"{item} {go}")
    return [booked, str(noted[0] == number), noted[1], way, go, str(count)]


@flow
async def troubled(ctx: FlowContext) -> list[str]:
    errors = []
    for number in range(4):
        try:
            await ctx.step(ask_bank, number)
        except (ReplyTimeoutError, OutboxFullError, ValueError, MemberNotFoundError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    try:
        await ctx.wait_for_signal("never", str, timeout=0.01)
    except FlowTimeoutError:
        errors.append("too late")
    await ctx.wait_for_signal("go", bool)  # Here it was.
    return errors


@flow
async def nap(ctx: FlowContext, seconds: float) -> str:
    await ctx.step(note, "before")
    await ctx.sleep(seconds)  # Here it was.
    return await ctx.step(note, "after")


@flow
async def talk(ctx: FlowContext, peer: str) -> list[str]:
    session = ctx.open_session(peer)
    received = [await session.send_and_receive("first", str)]
    await ctx.wait_for_signal("go", bool)  # Here it was, with the next message in the store.
    received.append(await session.receive(str))
    received.append(await session.send_and_receive("second", str))
    return received


@responder(talk)
async def answer(ctx: FlowContext, session: FlowSession) -> int:
    first = await session.receive(str)
    await ctx.step(book, first)
    await session.send(f"{first} heard")
    await session.send("by the way")
    second = await session.receive(str)  # Here it was.
    await ctx.step(book, second)
    await session.send(f"{second} heard")
    return 2


@flow
async def cry(ctx: FlowContext, peer: str) -> str:
    text = "there was help"
    try:
        await ctx.open_session(peer).send_and_receive("help", str)
    except PeerFlowFailedError as error:
        text = f"{error} ({error.peer}, {error.kind})"
    await ctx.wait_for_signal("go", bool)  # Here it was.
    return text


@responder(cry)
async def fail(ctx: FlowContext, session: FlowSession) -> None:
    await session.receive(str)
    raise FlowError("no help here")  # It had.


@flow
async def broken(ctx: FlowContext) -> str:
    await ctx.step(note, "once")
    await ctx.step(break_down)  # Here it was parked.
    return "mended"


@flow(timeout=0.01)
async def late(ctx: FlowContext) -> None:
    await ctx.sleep(60)


@flow
async def done(ctx: FlowContext, item: str) -> dict[str, str]:
    return {"item": await ctx.step(note, item)}


@flow
async def loop(ctx: FlowContext, number: int) -> int:
    await ctx.step(note, str(number))
    if number < 2:
        ctx.continue_as_new(number + 1)
    await ctx.wait_for_signal("go", bool)  # Here it was, in its third run.
    return number


@flow
async def inner(ctx: FlowContext, item: str) -> str:
    return await ctx.step(note, item)


@flow
async def outer(ctx: FlowContext) -> list[str]:
    noted = await ctx.run_subflow(inner, "inner")
    # Here it was.
    name, value = await ctx.select(go=ctx.wait_for_signal("go", str), late=ctx.sleep(3e9))
    return [noted, name, str(value)]


@flow
async def collect(ctx: FlowContext) -> list[str]:
    # Here it was, with the other signal in the store.
    return [await ctx.wait_for_signal("go", str), await ctx.wait_for_signal("early", str)]


@flow
async def block(ctx: FlowContext) -> None:
    """It had ended a block of `flow.transaction()`, which there is no more."""
    await ctx.wait_for_signal("go", bool)


@flow
async def prepare(ctx: FlowContext) -> None:
    """It had created the table of bookings."""


ALPHA = (
    *(prepare, order, troubled, nap, talk, cry, broken, late, done, loop, inner, outer),
    *(collect, block),
)
BETA = (prepare, answer, fail)


@pytest.fixture(params=["sqlite_1", "sqlite_2", "postgres_2"])
def store_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Opens copies of the stores."""
    if request.param == "postgres_2":
        with fresh_database() as dsn:
            with psycopg.connect(dsn) as connection:
                connection.execute((STORES / "postgres_2.sql").read_bytes())
            yield lambda name: PostgresStore(dsn, name)
        return
    for name in ("alpha", "beta"):
        with sqlite3.connect(tmp_path / f"{name}.db") as database:
            database.executescript((STORES / f"{request.param}_{name}.sql").read_text())
        database.close()
    yield lambda name: SqliteStore(tmp_path / f"{name}.db")


@pytest.fixture(params=[False, True], ids=["live", "reloaded"])
async def nodes(
    request: pytest.FixtureRequest, store_of: Callable[[str], Store], tmp_path: Path
) -> AsyncIterator[FlowNodes]:
    CALLS.clear()
    config = msgspec.structs.replace(CONFIG, replay_every_time=request.param)
    nodes = FlowNodes(tmp_path, config, store_of)
    try:
        yield nodes
    finally:
        await nodes.stop()


async def start_alpha(nodes: FlowNodes) -> FlowNode:
    return await nodes.start("alpha", *ALPHA, mail_config=MAIL_CONFIG)


async def start_beta(nodes: FlowNodes) -> FlowNode:
    return await nodes.start("beta", *BETA, mail_config=MAIL_CONFIG)


async def result_of(node: FlowNode, client_id: str) -> Any:
    handle = await node.flows.get_by_client_id(client_id)
    return await handle.result(DEADLINE_S)


async def test_flows_of_an_earlier_version_go_on_where_they_were(nodes: FlowNodes) -> None:
    beta = await start_beta(nodes)
    alpha = await start_alpha(nodes)
    flows = alpha.flows
    signals: dict[str, object] = {"order": "now", "outer": "now", "collect": "now"}
    for client_id in (*signals, "troubled", "talk", "cry", "loop"):
        handle = await flows.get_by_client_id(client_id)
        await flows.signal(handle.id, "go", signals.get(client_id, True))
    await flows.admin.resume((await flows.get_by_client_id("paused")).id)

    result = partial(result_of, alpha)
    assert await result("order") == ["tea", "True", "b", "new", "now", "2"]
    assert await result("troubled") == [
        "ReplyTimeoutError: no reply in time",
        "OutboxFullError: the outbox is full",
        "ValueError: no such account",
        "MemberNotFoundError: bank is gone",
        "too late",
    ]
    assert await result("talk") == ["first heard", "by the way", "second heard"]
    failure = "the flow of beta has failed: no help here (beta, FlowError)"
    assert await result("cry") == failure
    assert await result("loop") == 2
    assert await result("outer") == ["inner", "go", "now"]
    assert await result("collect") == ["now", "kept"]
    assert await result("broken") == "mended"
    assert [await result("nap"), await result("paused")] == ["after", "after"]
    (triggered,) = [
        view
        for view in await flows.admin.list(name="nap")
        if (view.client_id or "") not in KNOWN_NAPS
    ]
    assert await alpha.result(triggered.id) == "after"
    naps = await flows.admin.list(name="nap")
    assert naps == await flows.admin.list(name="nap", where=["customer=null"])
    assert all(view.attributes == {} for view in naps)
    (responding,) = await beta.until_listed("answer", FlowStatus.COMPLETED)
    assert await beta.result(responding.id) == 2

    # No step that had been done was done again.
    assert sorted(CALLS) == sorted(["tea now", "second", "mended", "after", "after", "after"])
    for node, items in ((alpha, ["block", "tea", "tea now"]), (beta, ["first", "second"])):
        rows = await node.rows("SELECT item, step FROM bookings")
        assert sorted(item for item, _ in rows) == items
        assert len({step for _, step in rows}) == len(items)
        await until_empty(node.station.mail, "beta" if node is alpha else "alpha")
        assert await node.rows("SELECT COUNT(*) FROM postroad_flow_mail") == [(0,)]


KNOWN_NAPS = {"nap", "paused", "killed"}


async def test_results_and_schedules_of_an_earlier_version_are_kept(nodes: FlowNodes) -> None:
    alpha = await start_alpha(nodes)
    flows = alpha.flows
    again = await flows.start_flow_with_id("done", done, "coffee")
    assert await again.result(DEADLINE_S) == {"item": "tea"}
    with pytest.raises(FlowTimeoutError, match="late took too long"):
        await result_of(alpha, "late")
    with pytest.raises(FlowKilledError, match="not wanted"):
        await result_of(alpha, "killed")
    copy = await flows.admin.fork(again.id, 1)
    assert await alpha.result(copy) == {"item": "tea"}
    assert "tea" not in CALLS

    resting, yearly = sorted(await flows.schedules.list(), key=lambda schedule: schedule.name)
    assert (resting.flow, resting.cron, resting.catch_up) == ("done", "@daily", "all")
    assert (resting.arguments, resting.is_paused, resting.problem) == (["tea"], True, None)
    assert (yearly.flow, yearly.cron, yearly.catch_up) == ("nap", "30 2 1 1 *", "none")
    assert (yearly.timezone, yearly.is_paused, yearly.problem) == ("Europe/Berlin", False, None)
    assert yearly.next_at is not None
    handle = await flows.schedules.trigger("resting")
    assert await handle.result(DEADLINE_S) == {"item": "tea"}


async def test_flow_with_a_block_that_cannot_be_replayed_waits_for_an_operator(
    nodes: FlowNodes,
) -> None:
    alpha = await start_alpha(nodes)
    handle = await alpha.flows.get_by_client_id("block")
    await alpha.flows.signal(handle.id, "go", True)
    view = await alpha.until(handle.id, FlowStatus.PARKED)
    assert view.error is not None
    assert "cannot replay step 0 transaction" in view.error
    (step,) = await alpha.flows.admin.history(handle.id)
    assert step.kind == "transaction"
    await alpha.flows.admin.kill(handle.id)
    assert await alpha.rows("SELECT COUNT(*) FROM bookings WHERE item = 'block'") == [(1,)]


async def test_messages_of_an_earlier_version_arrive_once(nodes: FlowNodes) -> None:
    alpha = await start_alpha(nodes)
    queues = alpha.station.mail
    # Sent before, and delivered or not: their keys are known.
    send = partial(queues.send, "orders", to="beta", key="k")
    await send(b"early 0", idempotency_key="early 0")
    await send(b"late 0", idempotency_key="late 0", headers={"h": "0"})
    statistics = await queues.statistics()
    assert {name: peer.depth for name, peer in statistics.peers.items()} == {"beta": 3, "gamma": 1}
    assert [message.body for message in await queues.bridges.peek("gamma")] == [b"for gamma"]

    beta = await start_beta(nodes)
    (dead,) = await beta.station.mail.dead_letters.list()
    assert (dead.message.body, dead.reason, dead.detail) == (
        *(b"bad", "rejected"),
        "Reject: no such customer",
    )
    (failed,) = [
        pending
        for pending in await beta.station.mail.admin.peek_pending("orders")
        if pending.failures
    ]
    assert (failed.message.body, failed.failures) == (b"fails", 1)
    recorder = await Recorder.at(beta.station, retry=RetryPolicy(max_attempts=9))
    await send(b"new")
    bodies = await recorder.until(6)
    assert (bodies.count(b"fails"), recorder.messages[bodies.index(b"fails")].attempt) == (1, 2)
    bodies.remove(b"fails")
    assert bodies == [b"waits", b"late 0", b"late 1", b"late 2", b"new"]
    headers = [message.headers for message in recorder.messages if message.body.startswith(b"late")]
    assert headers == [{"h": "0"}, {"h": "1"}, {"h": "2"}]
    await until_empty(queues, "beta")

    local = await Recorder.at(queues, "local")
    assert await local.until(1) == [b"local"]
    await until_waiting(queues, "local", 1)
    assert [message.body for message in await queues.admin.peek("local")] == [b"delayed"]
    assert len(recorder.messages) == 6
