"""Steps that work on the store: exactly once, with what they write there and post."""

from __future__ import annotations

import asyncio

import sqlalchemy
from sqlalchemy.orm import Session as SqlSession

from postroad.durable import Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowSession,
    FlowStatus,
    FlowTimeoutError,
    RetryPolicy,
    StepId,
    StoreConnection,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import Recorder
from tests.support.flows.nodes import FlowNodes

SOON = RetryPolicy(max_attempts=4, initial_delay_s=0.001, max_delay_s=0.004)


async def create_books(tx: Transaction = INJECTED) -> None:
    await tx.execute("CREATE TABLE books (number INTEGER, step TEXT)")


async def book(number: int, tx: Transaction = INJECTED, step_id: StepId = INJECTED) -> int:
    await tx.execute(f"INSERT INTO books VALUES ({number}, '{step_id}')")
    return len(await tx.execute("SELECT * FROM books"))


async def book_and_fail(
    number: int, tx: Transaction = INJECTED, step_id: StepId = INJECTED
) -> None:
    await book(number, tx, step_id)
    tx.send("orders", b"never", to="alpha")
    raise ValueError("after all that")


def book_plainly(
    number: int, connection: StoreConnection = INJECTED, step_id: StepId = INJECTED
) -> int:
    connection.execute(f"INSERT INTO books VALUES ({number}, '{step_id}')")
    return len(connection.execute("SELECT * FROM books").fetchall())


def book_by_session(
    number: int, sql_session: SqlSession = INJECTED, step_id: StepId = INJECTED
) -> int:
    statement = sqlalchemy.text("INSERT INTO books VALUES (:number, :step)")
    sql_session.execute(statement, {"number": number, "step": step_id})
    sql_session.commit()
    return len(sql_session.execute(sqlalchemy.text("SELECT * FROM books")).all())


@flow
async def keep_books(ctx: FlowContext, count: int) -> list[int]:
    await ctx.step(create_books)
    results = [await ctx.step(book, number) for number in range(count)]
    await ctx.wait_for_signal("go", bool)
    results += [await ctx.step(book_plainly, number) for number in range(count, 2 * count)]
    results += [await ctx.step(book_by_session, number) for number in range(2 * count, 3 * count)]
    return results


async def test_rows_are_written_once_with_the_step(nodes: FlowNodes) -> None:
    alpha, handle = await nodes.begin(keep_books, 3)
    await alpha.until_steps(handle.id, 4)
    await alpha.restart()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == list(range(1, 10))
    rows = await alpha.rows("SELECT number, step FROM books ORDER BY number")
    # The signal is a step too.
    places = [1, 2, 3, 5, 6, 7, 8, 9, 10]
    expected = [f"alpha/{handle.id}/1/{place}" for place in places]
    assert rows == list(zip(range(9), expected, strict=True))


@flow
async def fail_to_book(ctx: FlowContext) -> list[str]:
    await ctx.step(create_books)
    seen = []
    for function in (book_and_fail, fail_plainly, fail_by_session):
        try:
            await ctx.step.with_options(retry=SOON)(function, 1)
        except ValueError as error:
            seen.append(str(error))
    await ctx.step(book, 2)
    return seen


def fail_plainly(
    number: int, connection: StoreConnection = INJECTED, step_id: StepId = INJECTED
) -> None:
    book_plainly(number, connection, step_id)
    raise ValueError("plainly")


def fail_by_session(
    number: int, sql_session: SqlSession = INJECTED, step_id: StepId = INJECTED
) -> None:
    book_by_session(number, sql_session, step_id)
    raise ValueError("by session")


async def test_a_step_that_raises_leaves_nothing(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", fail_to_book)
    recorder = Recorder()
    await alpha.station.mail.consume("orders", recorder)
    seen = await alpha.run(fail_to_book)
    assert seen == ["after all that", "plainly", "by session"]
    assert [number for number, _ in await alpha.rows("SELECT * FROM books")] == [2]
    await alpha.station.mail.send("orders", b"last", to="alpha")
    assert await recorder.until(1) == [b"last"]


async def test_many_flows_book_at_the_same_time(nodes: FlowNodes) -> None:
    @flow
    async def book_two(ctx: FlowContext, number: int) -> None:
        await ctx.gather(ctx.step(book, number), ctx.step(book, -number))

    @flow
    async def open_books(ctx: FlowContext) -> None:
        await ctx.step(create_books)

    alpha = await nodes.start("alpha", open_books, book_two)
    await alpha.run(open_books)
    handles = [await alpha.begin(book_two, number) for number in range(1, 21)]
    for handle in handles:
        await handle.result(DEADLINE_S)
    rows = await alpha.rows("SELECT number, step FROM books ORDER BY number")
    assert [number for number, _ in rows] == [number for number in range(-20, 21) if number]
    assert len({step for _, step in rows}) == 40


@flow
async def pay(ctx: FlowContext, peer: str, amount: int) -> int:
    await ctx.step(book, -amount)
    return await ctx.open_session(peer).send_and_receive(amount, int)


@responder(pay)
async def be_paid(ctx: FlowContext, session: FlowSession) -> None:
    amount = await session.receive(int)
    await ctx.step(book, amount)
    await session.send(amount)


@flow
async def open_books(ctx: FlowContext) -> None:
    await ctx.step(create_books)


async def test_step_transactions_commit_on_both_nodes(nodes: FlowNodes) -> None:
    alpha, beta = await nodes.pair(open_books, pay, be_paid)
    await alpha.run(open_books)
    await beta.run(open_books)
    handles = [await alpha.begin(pay, "beta", amount) for amount in range(1, 11)]
    await alpha.restart_flows()
    await beta.restart()
    assert sorted([await alpha.result(handle.id) for handle in handles]) == list(range(1, 11))
    assert await alpha.rows("SELECT SUM(number), COUNT(*) FROM books") == [(-55, 10)]
    assert await beta.rows("SELECT SUM(number), COUNT(*) FROM books") == [(55, 10)]


async def test_sends_of_step_are_sent_once(nodes: FlowNodes) -> None:
    async def post(number: int, tx: Transaction = INJECTED) -> int:
        return tx.send("orders", b"%d" % number, to="alpha")

    @flow
    async def post_all(ctx: FlowContext) -> int:
        ids = [await ctx.step(post, number) for number in range(5)]
        await ctx.wait_for_signal("go", bool)
        return len(set(ids))

    alpha = await nodes.start("alpha", post_all)
    recorder = Recorder()
    handle = await alpha.begin(post_all)
    await alpha.until_steps(handle.id, 5)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == 5
    await alpha.station.mail.consume("orders", recorder)
    assert await recorder.until(5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_transaction_that_touches_nothing_is_a_step_like_others(nodes: FlowNodes) -> None:
    async def idle(tx: Transaction = INJECTED) -> str:
        return "nothing"

    @flow
    async def do_nothing(ctx: FlowContext) -> str:
        return await ctx.step(idle)

    assert await nodes.run(do_nothing) == "nothing"


async def test_a_withdrawn_transaction_leaves_nothing(nodes: FlowNodes) -> None:
    async def book_slowly(
        number: int, tx: Transaction = INJECTED, step_id: StepId = INJECTED
    ) -> None:
        await book(number, tx, step_id)
        await asyncio.Event().wait()

    @flow
    async def lose(ctx: FlowContext) -> str:
        await ctx.step(create_books)
        name, _ = await ctx.select(
            slow=ctx.step(book_slowly, 1), signal=ctx.wait_for_signal("enough", bool)
        )
        await ctx.step(book, 2)
        return name

    alpha, handle = await nodes.begin(lose)
    await alpha.until_steps(handle.id, 1)
    await alpha.flows.signal(handle.id, "enough", True)
    assert await handle.result(DEADLINE_S) == "signal"
    assert [number for number, _ in await alpha.rows("SELECT * FROM books")] == [2]


async def test_a_time_limit_undoes_a_transaction(nodes: FlowNodes) -> None:
    async def book_slowly(
        number: int, tx: Transaction = INJECTED, step_id: StepId = INJECTED
    ) -> None:
        await book(number, tx, step_id)
        await asyncio.Event().wait()

    @flow
    async def hurry(ctx: FlowContext) -> str:
        await ctx.step(create_books)
        try:
            await ctx.step.with_options(timeout=0.03)(book_slowly, 1)
        except TimeoutError:
            await ctx.step(book, 2)
        return "done"

    alpha = await nodes.start("alpha", hurry)
    assert await alpha.run(hurry) == "done"
    assert [number for number, _ in await alpha.rows("SELECT * FROM books")] == [2]


async def test_a_paused_transaction_is_undone_and_done_later(nodes: FlowNodes) -> None:
    began = asyncio.Event()

    async def book_at_last(
        number: int, tx: Transaction = INJECTED, step_id: StepId = INJECTED
    ) -> None:
        await book(number, tx, step_id)
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()

    @flow
    async def rest(ctx: FlowContext) -> str:
        await ctx.step(create_books)
        await ctx.step(book_at_last, 1)
        return "done"

    alpha, handle = await nodes.begin(rest)
    async with asyncio.timeout(10):
        await began.wait()
        await alpha.flows.admin.pause(handle.id)
    assert await alpha.rows("SELECT * FROM books") == []
    assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.PAUSED
    await alpha.flows.admin.resume(handle.id)
    assert await handle.result(DEADLINE_S) == "done"
    assert [number for number, _ in await alpha.rows("SELECT * FROM books")] == [1]


async def test_an_open_transaction_is_killed_or_stopped(nodes: FlowNodes) -> None:
    began = asyncio.Event()
    calls: list[int] = []

    async def book_first(tx: Transaction = INJECTED) -> None:
        await create_books(tx)
        calls.append(1)
        began.set()
        if len(calls) < 3:
            await asyncio.Event().wait()

    @flow
    async def slow(ctx: FlowContext) -> str:
        await ctx.step(book_first)
        return "booked"

    alpha = await nodes.start("alpha", slow)
    async with asyncio.timeout(10):
        handle = await alpha.begin(slow)
        await began.wait()
        await alpha.flows.admin.kill(handle.id)
        began.clear()
        handle = await alpha.begin(slow)
        await began.wait()
        await alpha.restart()
    assert await alpha.result(handle.id) == "booked"
    assert calls == [1, 1, 1]


async def test_message_during_open_transaction_is_read_once(nodes: FlowNodes) -> None:
    began, is_free = asyncio.Event(), asyncio.Event()

    async def book_slowly(tx: Transaction = INJECTED) -> None:
        await create_books(tx)
        began.set()
        await is_free.wait()

    @flow
    async def listen(ctx: FlowContext) -> list[str]:
        await ctx.step(book_slowly)
        seen = [await ctx.wait_for_signal("text", str)]
        await ctx.wait_for_signal("end", bool)
        try:
            seen.append(await ctx.wait_for_signal("text", str, timeout=0.02))
        except FlowTimeoutError:
            seen.append("no more")
        return seen

    alpha, handle = await nodes.begin(listen)
    async with asyncio.timeout(10):
        await began.wait()
        # It cannot be durable before the transaction is over.
        signalling = asyncio.ensure_future(alpha.flows.signal(handle.id, "text", "once"))
        await asyncio.sleep(0.02)
        is_free.set()
        await signalling
    await alpha.until_steps(handle.id, 2)
    assert await alpha.rows("SELECT COUNT(*) FROM postroad_flow_mail") == [(0,)]
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "end", True)
    assert await alpha.result(handle.id) == ["once", "no more"]
