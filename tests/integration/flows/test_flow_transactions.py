"""Blocks of statements in the code of a flow: done once, with the step that they are."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import sqlalchemy

from postroad.core.errors import UsageError
from postroad.flows import Flow, FlowError, Session, Status, StepFailed, flow, responds_to
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNodes


@flow
async def open_books(flow: Flow) -> None:
    async with flow.transaction() as tx:
        await tx.execute("CREATE TABLE books (number INTEGER PRIMARY KEY, writer TEXT)")


def write(connection: Any, number: int, *, writer: str) -> int:
    connection.execute(f"INSERT INTO books VALUES ({number}, '{writer}')")
    return len(connection.execute("SELECT * FROM books").fetchall())


def write_by_session(session: Any, number: int) -> int:
    session.execute(sqlalchemy.text(f"INSERT INTO books VALUES ({number}, 'session')"))
    session.commit()
    return len(session.execute(sqlalchemy.text("SELECT * FROM books")).all())


async def test_statements_are_run_once_and_their_results_remembered(nodes: FlowNodes) -> None:
    @flow
    async def keep_books(flow: Flow) -> list[object]:
        results: list[object] = []
        for number in (1, 2):
            async with flow.transaction() as tx:
                await tx.execute(f"INSERT INTO books VALUES ({number}, 'statement')")
                results.append(await tx.execute("SELECT COUNT(*), MAX(number) FROM books"))
                results.append(await tx.run(write, number * 10, writer="function"))
                results.append(await tx.run_session(write_by_session, number * 100))
        await flow.signal("go", bool)
        async with flow.transaction() as tx:
            await tx.execute("DELETE FROM books WHERE number = 1")
        return results

    alpha = await nodes.start("alpha", open_books, keep_books)
    await alpha.run(open_books)
    handle = await alpha.begin(keep_books)
    await alpha.until_steps(handle.id, 2)
    await alpha.restart()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == [[[1, 1]], 2, 3, [[4, 100]], 5, 6]
    rows = await alpha.rows("SELECT number FROM books ORDER BY number")
    assert rows == [(2,), (10,), (20,), (100,), (200,)]
    kinds = [it.kind.value for it in await alpha.flows.history(handle.id)]
    assert kinds == ["transaction", "transaction", "signal", "transaction"]


async def test_an_error_that_leaves_the_block_undoes_it(nodes: FlowNodes) -> None:
    @flow
    async def change_mind(flow: Flow) -> list[str]:
        seen = []
        try:
            async with flow.transaction() as tx:
                await tx.execute("INSERT INTO books VALUES (1, 'undone')")
                raise FlowError("not this")
        except FlowError as error:
            seen.append(str(error))
        async with flow.transaction() as tx:
            await tx.execute("INSERT INTO books VALUES (2, 'kept')")
            try:
                await tx.execute("INSERT INTO books VALUES (2, 'twice')")
            except Exception as error:
                seen.append(type(error).__name__)
            await tx.execute("INSERT INTO books VALUES (3, 'kept')")
        await flow.signal("go", bool)
        return seen

    alpha = await nodes.start("alpha", open_books, change_mind)
    await alpha.run(open_books)
    handle = await alpha.begin(change_mind)
    await alpha.until_steps(handle.id, 2)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", True)
    first, second = await alpha.result(handle.id)
    assert "not this" in first
    assert second in ("IntegrityError", "UniqueViolation", StepFailed.__name__)
    assert await alpha.rows("SELECT * FROM books ORDER BY 1") == [(2, "kept"), (3, "kept")]


async def test_a_flow_that_fails_in_a_block_leaves_nothing_of_it(nodes: FlowNodes) -> None:
    @flow
    async def fails(flow: Flow) -> None:
        async with flow.transaction() as tx:
            await tx.execute("INSERT INTO books VALUES (1, 'undone')")
            raise FlowError("after all")

    @flow
    async def breaks(flow: Flow) -> None:
        async with flow.transaction() as tx:
            await tx.execute("INSERT INTO books VALUES (2, 'undone')")
            raise ValueError("a fault")

    alpha = await nodes.start("alpha", open_books, fails, breaks)
    await alpha.run(open_books)
    with pytest.raises(FlowError, match="after all"):
        await alpha.run(fails)
    handle = await alpha.begin(breaks)
    await alpha.until(handle.id, Status.PARKED)
    assert await alpha.rows("SELECT * FROM books") == []
    await alpha.flows.retry(handle.id)
    await alpha.until(handle.id, Status.PARKED)
    assert await alpha.rows("SELECT * FROM books") == []


async def test_a_block_and_what_is_said_after_it(nodes: FlowNodes) -> None:
    @flow
    async def pay(flow: Flow, peer: str, number: int) -> int:
        async with flow.transaction() as tx:
            await tx.execute(f"INSERT INTO books VALUES ({number}, 'payer')")
        return await flow.open(peer).send_and_receive(number, int)

    @responds_to(pay)
    async def be_paid(flow: Flow, session: Session) -> None:
        number = await session.receive(int)
        async with flow.transaction() as tx:
            await tx.execute(f"INSERT INTO books VALUES ({number}, 'payee')")
            ((count,),) = await tx.execute("SELECT COUNT(*) FROM books")
        assert count > 0
        await session.send(number)

    alpha, beta = await nodes.pair(open_books, pay, be_paid)
    for node in (alpha, beta):
        await node.run(open_books)
    handles = [await alpha.begin(pay, "beta", number) for number in range(10)]
    await beta.restart_flows()
    await alpha.restart_flows()
    assert [await alpha.result(it.id) for it in handles] == list(range(10))
    for node in (alpha, beta):
        rows = await node.rows("SELECT number FROM books ORDER BY 1")
        assert rows == [(number,) for number in range(10)]


async def test_blocks_in_branches_take_turns(nodes: FlowNodes) -> None:
    @flow
    async def both(flow: Flow) -> list[int]:
        async def one(number: int) -> int:
            async with flow.transaction() as tx:
                await tx.execute(f"INSERT INTO books VALUES ({number}, 'branch')")
                ((count,),) = await tx.execute("SELECT COUNT(*) FROM books")
            return int(count)

        counts = await flow.gather(one(1), one(2), flow.sleep(0.01), one(3))
        return [it for it in counts if it is not None]

    alpha = await nodes.start("alpha", open_books, both)
    await alpha.run(open_books)
    assert sorted(await alpha.run(both)) == [1, 2, 3]
    assert len(await alpha.rows("SELECT * FROM books")) == 3


async def test_nothing_else_can_be_waited_for_in_a_block(nodes: FlowNodes) -> None:
    @flow
    async def misuse(flow: Flow) -> list[str]:
        seen = []
        tx = flow.transaction()
        try:
            async with tx:
                await tx.execute("INSERT INTO books VALUES (1, 'undone')")
                await flow.sleep(0.01)
        except UsageError as error:
            seen.append(str(error))
        try:
            async with flow.transaction(), flow.transaction():
                seen.append("nested")
        except UsageError as error:
            seen.append(str(error))
        try:
            await tx.execute("SELECT 1")
        except UsageError as error:
            seen.append(str(error))
        return seen

    alpha = await nodes.start("alpha", open_books, misuse)
    await alpha.run(open_books)
    waited, nested, after = await alpha.run(misuse)
    assert "transaction" in waited
    assert "a transaction is one block, and not inside another" in nested
    assert "the transaction is over" in after
    assert await alpha.rows("SELECT * FROM books") == []


async def test_an_empty_block_is_a_step(nodes: FlowNodes) -> None:
    @flow
    async def idle(flow: Flow) -> str:
        async with flow.transaction():
            flow.progress("nothing to do")
        return await flow.step(str, "done")

    assert await nodes.run(idle) == "done"


async def test_a_changed_statement_does_not_fit(nodes: FlowNodes) -> None:
    @flow(name="work")
    async def original(flow: Flow) -> None:
        async with flow.transaction() as tx:
            await tx.execute("INSERT INTO books VALUES (1, 'old')")
        await flow.signal("go", bool)

    @flow(name="work")
    async def changed(flow: Flow) -> None:
        async with flow.transaction() as tx:
            await tx.execute("INSERT INTO books VALUES (1, 'new')")
        await flow.signal("go", bool)

    alpha = await nodes.start("alpha", open_books, original)
    await alpha.run(open_books)
    handle = await alpha.begin(original)
    await alpha.until_steps(handle.id, 1)
    await alpha.restart_flows(open_books, changed)
    await alpha.flows.signal(handle.id, "go", True)
    parked = await alpha.until(handle.id, Status.PARKED)
    assert "does not fit its record at step 0" in str(parked.detail)
    assert await alpha.rows("SELECT writer FROM books") == [("old",)]


async def test_flows_with_blocks_are_killed_and_paused(nodes: FlowNodes) -> None:
    @flow
    async def busy(flow: Flow, number: int) -> int:
        more = True
        while more:
            async with flow.transaction() as tx:
                await tx.execute(f"DELETE FROM books WHERE number = {number}")
                await tx.execute(f"INSERT INTO books VALUES ({number}, 'busy')")
            more = (await flow.select(end=flow.signal("end", bool), more=flow.sleep(0.002)))[
                0
            ] == "more"
        return number

    alpha = await nodes.start("alpha", open_books, busy)
    await alpha.run(open_books)
    handles = [await alpha.begin(busy, number) for number in range(6)]
    await asyncio.sleep(0.02)
    await asyncio.gather(*(alpha.flows.pause(it.id) for it in handles[:3]))
    for handle in handles[:3]:
        assert (await alpha.flows.show(handle.id)).status is Status.PAUSED
    await alpha.flows.kill(handles[0].id)
    for handle in handles[1:3]:
        await alpha.flows.resume(handle.id)
    for handle in handles[1:]:
        await alpha.flows.signal(handle.id, "end", True)
    assert [await it.result(DEADLINE_S) for it in handles[1:]] == [1, 2, 3, 4, 5]
    rows = await alpha.rows("SELECT number FROM books WHERE number > 0 ORDER BY 1")
    assert rows == [(1,), (2,), (3,), (4,), (5,)]


@flow
async def rewrite(flow: Flow, number: int) -> int:
    """Goes from one block to the next, and never waits for anything else."""
    count = 0
    flow.answer("count", lambda: count)
    while count < 1_000_000:
        count += 1
        async with flow.transaction() as tx:
            await tx.execute(f"DELETE FROM books WHERE number = {number}")
            await tx.execute(f"INSERT INTO books VALUES ({number}, 'busy')")
    return count + await flow.signal("unread", bool)


async def test_operators_of_flows_that_never_leave_blocks_are_heard(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", open_books, rewrite)
    await alpha.run(open_books)
    handles = [await alpha.begin(rewrite, number) for number in range(4)]
    flows = alpha.flows
    async with asyncio.timeout(DEADLINE_S):
        before = [await flows.query(it.id, "count") for it in handles]
        await asyncio.gather(*(flows.pause(it.id) for it in handles[:3]))
        for handle in handles[:3]:
            assert (await flows.show(handle.id)).status is Status.PAUSED
        await flows.kill(handles[0].id)
        for handle in handles[1:3]:
            await flows.resume(handle.id)
        for handle, count in zip(handles[1:], before[1:], strict=True):
            while await flows.query(handle.id, "count") <= count:
                pass
            await flows.signal(handle.id, "unread", True)
            await flows.kill(handle.id)
    for handle in handles:
        assert (await flows.show(handle.id)).status is Status.KILLED
    rows = await alpha.rows("SELECT number FROM books ORDER BY 1")
    assert rows == [(0,), (1,), (2,), (3,)]


async def test_flow_held_back_before_a_block_can_be_paused_and_killed(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", open_books, rewrite)
    await alpha.run(open_books)
    alpha.flows.hold()
    handles = [await alpha.begin(rewrite, number) for number in range(2)]
    async with asyncio.timeout(DEADLINE_S):
        await alpha.flows.pause(handles[0].id)
        await alpha.flows.kill(handles[1].id)
        alpha.flows.release()
        await alpha.flows.resume(handles[0].id)
        while await alpha.flows.query(handles[0].id, "count") < 3:
            pass
        await alpha.flows.kill(handles[0].id)
    assert await alpha.rows("SELECT number FROM books") == [(0,)]


async def test_sleep_after_a_block_begins_when_the_block_ends(nodes: FlowNodes) -> None:
    def dawdle(connection: Any) -> float:
        time.sleep(0.3)
        return time.time()

    @flow
    async def rest(flow: Flow) -> float:
        async with flow.transaction() as tx:
            ended_at = float(await tx.run(dawdle))
        await flow.sleep(0.2)
        return flow.now().timestamp() - ended_at

    assert await nodes.run(rest) >= 0.19
