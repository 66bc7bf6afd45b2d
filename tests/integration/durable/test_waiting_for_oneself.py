"""Nothing that is called in a transaction waits for the commit that waits for the transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from postroad.core.errors import TransactionAbortedError, UsageError
from postroad.durable import DurableQueues, MemoryStore, Message, Transaction
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import AT_ONCE, QUICK, Station, running_station

Call = Callable[[DurableQueues], Coroutine[Any, Any, object]]


@pytest.fixture
async def alpha(tmp_path: Path) -> AsyncIterator[Station]:
    async with running_station("alpha", tmp_path) as station:
        yield station


def post(mail: DurableQueues) -> Coroutine[Any, Any, object]:
    return mail.send("bills", b"", to="beta")


CALLS: dict[str, Call] = {
    "post": post,
    "post with a key": lambda mail: mail.send("bills", b"", to="beta", idempotency_key="k"),
    "post_all": lambda mail: mail.send_many([]),
    "request": lambda mail: mail.request("bills", b"", to="beta", timeout=5),
    "declare": lambda mail: mail.declare("bills"),
    "consume": lambda mail: mail.consume("bills", print),
    "stop_consuming": lambda mail: mail.stop_consuming("bills"),
    "pull": lambda mail: mail.pull("bills", timeout=5),
    "purge": lambda mail: mail.admin.purge("bills"),
    "pause": lambda mail: mail.admin.pause("bills"),
    "drop_all_dead": lambda mail: mail.dead_letters.drop(1),
    "pause_bridge": lambda mail: mail.bridges.pause("beta"),
}


async def with_gather(call: Coroutine[Any, Any, object]) -> None:
    await asyncio.gather(asyncio.sleep(0), call)


async def with_task(call: Coroutine[Any, Any, object]) -> None:
    await asyncio.create_task(call)


async def with_wait_for(call: Coroutine[Any, Any, object]) -> None:
    await asyncio.wait_for(call, 5)


async def with_group(call: Coroutine[Any, Any, object]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(call)
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from None


async def with_thread(call: Coroutine[Any, Any, object]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(call, loop).result(5))


WAYS: dict[str, Callable[[Coroutine[Any, Any, object]], Awaitable[object]]] = {
    "gather": with_gather,
    "task": with_task,
    "wait_for": with_wait_for,
    "group": with_group,
    "thread": with_thread,
}


@pytest.mark.parametrize("call", CALLS)
async def test_call_in_a_transaction_is_refused_at_once(alpha: Station, call: str) -> None:
    async with alpha.mail.transaction() as tx:
        await tx.execute("SELECT 1")
        with pytest.raises(UsageError, match="the transaction it is called in"):
            await CALLS[call](alpha.mail)
    # Once it is over, and before it has a statement, all is well.
    await post(alpha.mail)
    async with alpha.mail.transaction():
        await post(alpha.mail)
    assert len(await alpha.mail.bridges.peek("beta")) == 2


@pytest.mark.parametrize("way", WAYS)
async def test_waiting_call_in_handler_is_rejected_in_any_task_or_thread(
    alpha: Station, way: str
) -> None:
    await check_handler(alpha, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_call_is_refused_on_every_event_loop(
    tmp_path: Path, way: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def run() -> None:
        async with running_station("alpha", tmp_path) as alpha:
            await check_handler(alpha, way)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


async def check_handler(alpha: Station, way: str) -> None:
    refused: list[UsageError] = []

    async def handle(message: Message, tx: Transaction) -> None:
        # The first statement may be that of a task of its own.
        await asyncio.gather(tx.execute("SELECT 1"))
        try:
            await WAYS[way](post(alpha.mail))
        except UsageError as error:
            refused.append(error)
        tx.send("bills", b"the way out", to="beta")

    await alpha.mail.consume("orders", handle, retry=AT_ONCE)
    await alpha.mail.send("orders", b"", to="alpha")
    await eventually(lambda: alpha.mail.bridges.peek("beta"), "it is handled")
    assert len(refused) == 1
    assert len(await alpha.mail.bridges.peek("beta")) == 1


async def test_call_that_waits_when_the_first_statement_comes_is_committed_before(
    alpha: Station,
) -> None:
    async with alpha.mail.transaction() as tx:
        # In this order the post was submitted first, in the other one it is refused.
        await asyncio.gather(post(alpha.mail), tx.execute("SELECT 1"))
        assert len(await alpha.mail.bridges.peek("beta")) == 1
    with pytest.raises(UsageError, match="the transaction it is called in"):
        async with alpha.mail.transaction() as tx:
            await asyncio.gather(tx.execute("SELECT 1"), post(alpha.mail))


async def test_task_that_outlives_its_transaction_may_send(alpha: Station) -> None:
    is_over = asyncio.Event()

    async def post_later() -> None:
        await is_over.wait()
        await post(alpha.mail)

    async with alpha.mail.transaction() as tx:
        await tx.execute("SELECT 1")
        task = asyncio.create_task(post_later())
    is_over.set()
    await task
    assert len(await alpha.mail.bridges.peek("beta")) == 1


async def test_consumer_made_in_a_transaction_is_not_in_it(alpha: Station) -> None:
    async def handle(message: Message, tx: Transaction) -> None:
        await post(alpha.mail)

    async with alpha.mail.transaction() as tx:
        await alpha.mail.consume("orders", handle)
        await tx.execute("SELECT 1")
        consumption = alpha.mail.dispatchers.get("orders")
        tx.send("orders", b"", to="alpha")
    await eventually(lambda: consumption.handled == 1)


async def test_transaction_in_a_transaction_is_refused_when_one_waits_for_the_other(
    alpha: Station,
) -> None:
    mail = alpha.mail
    with pytest.raises(UsageError, match="the transaction it is called in"):
        async with mail.transaction() as outer, mail.transaction() as inner:
            await outer.execute("SELECT 1")
            await inner.execute("SELECT 1")
    with pytest.raises(UsageError, match="the transaction it is called in"):
        async with mail.transaction() as outer, mail.transaction() as inner:
            await inner.execute("SELECT 1")
            await outer.execute("SELECT 1")
    with pytest.raises(UsageError, match="the transaction it is called in"):
        async with mail.transaction() as outer, mail.transaction() as inner:
            inner.send("bills", b"", to="beta")
            await outer.execute("SELECT 1")
    assert await mail.bridges.peek("beta") == []
    async with mail.transaction() as outer:
        async with mail.transaction() as inner:
            await inner.execute("SELECT 1")
        await outer.execute("SELECT 1")


async def test_pulled_message_is_not_acknowledged_in_another_transaction(alpha: Station) -> None:
    mail = alpha.mail
    await mail.send("orders", b"", to="alpha")
    (message,) = await mail.pull("orders")
    async with mail.transaction() as tx:
        await tx.execute("SELECT 1")
        with pytest.raises(UsageError, match="the transaction it is called in"):
            await message.ack()
    own = message.transaction()
    await own.execute("SELECT 1")
    await message.ack(own)
    await post(mail)


async def test_store_with_one_connection_is_not_read_in_a_transaction() -> None:
    async with running_station("alpha", MemoryStore()) as alpha, alpha.mail.transaction() as tx:
        await tx.execute("SELECT 1")
        with pytest.raises(UsageError, match="the transaction it is called in"):
            await alpha.mail.statistics()


async def test_transaction_of_other_node_does_not_block_sends(tmp_path: Path) -> None:
    async with (
        running_station("alpha", tmp_path) as alpha,
        running_station("beta", tmp_path) as beta,
        alpha.mail.transaction() as tx,
    ):
        await tx.execute("SELECT 1")
        await beta.mail.send("orders", b"", to="alpha")


async def test_lost_transaction_does_not_block_sends(tmp_path: Path) -> None:

    config = msgspec.structs.replace(QUICK, transaction_timeout_s=0.05)
    async with running_station("alpha", tmp_path, config=config) as alpha:
        with pytest.raises(TransactionAbortedError):
            async with alpha.mail.transaction() as tx:
                await tx.execute("SELECT 1")
                turn = tx._savepoint
                assert turn is not None
                await eventually(lambda: turn.is_finished)
                await post(alpha.mail)
