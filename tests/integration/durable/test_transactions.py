"""Statements on one's own tables, posts and acknowledgements that happen together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from contextvars import Context
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.core.errors import TransactionAbortedError, UsageError
from postroad.durable import DurableQueues, Message, OutgoingMessage, RetryPolicy, Transaction
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import (
    AT_ONCE,
    QUICK,
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    running_station,
    until_dead,
    until_empty,
    until_waiting,
)


async def create(mail: DurableQueues, table: str = "books (number INTEGER)") -> None:
    async with mail.transaction() as tx:
        await tx.execute(f"CREATE TABLE {table}")


async def rows_of(mail: DurableQueues) -> list[int]:
    async with mail.transaction() as tx:
        return [number for (number,) in await tx.execute("SELECT number FROM books ORDER BY 1")]


async def book(message: Message, tx: Transaction) -> None:
    await tx.execute("INSERT INTO books VALUES (?)", (int(message.body),))


async def test_statements_and_sends_commit_together(alpha: Station, beta: Station) -> None:
    await create(alpha.mail)
    recorder = await Recorder.at(beta)
    async with alpha.mail.transaction() as tx:
        await tx.execute("INSERT INTO books VALUES (1)")
        await alpha.mail.send("orders", b"1", to="beta", tx=tx)
        assert await tx.execute("SELECT number FROM books") == [(1,)]
    assert await recorder.until(1) == [b"1"]
    assert await rows_of(alpha.mail) == [1]


async def test_nothing_of_a_failed_transaction_happens(alpha: Station, beta: Station) -> None:
    await create(alpha.mail)
    with pytest.raises(ZeroDivisionError):
        async with alpha.mail.transaction() as tx:
            await tx.execute("INSERT INTO books VALUES (1)")
            tx.send("orders", b"1", to="beta")
            raise ZeroDivisionError
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        async with alpha.mail.transaction() as tx:
            tx.send("orders", b"2", to="beta")
            await tx.execute("INSERT INTO pamphlets VALUES (2)")
    await alpha.mail.send("orders", b"3", to="beta")
    await until_empty(alpha.mail, "beta")
    assert numbers_of(message.body for message in await beta.mail.admin.peek("orders")) == [3]
    assert await rows_of(alpha.mail) == []


async def test_transactions_do_not_see_half_of_one_another(alpha: Station) -> None:
    await create(alpha.mail)

    async def add() -> None:
        async with alpha.mail.transaction() as tx:
            ((count,),) = await tx.execute("SELECT COUNT(*) FROM books")
            await asyncio.sleep(0)
            await tx.execute("INSERT INTO books VALUES (?)", (count,))

    await asyncio.gather(*(add() for _ in range(50)))
    assert await rows_of(alpha.mail) == list(range(50))


async def test_rows_of_a_handler_are_committed_with_its_message(
    alpha: Station, beta: Station
) -> None:
    await create(beta.mail)
    bills = await Recorder.at(alpha, "bills")

    async def handle(message: Message, tx: Transaction) -> None:
        await book(message, tx)
        tx.send("bills", message.body, to="alpha")
        if message.attempt == 1:
            raise ValueError("the first attempt fails")

    await beta.mail.consume("orders", handle, concurrency=4, retry=AT_ONCE)
    await post_numbers(alpha, "beta", range(20))
    await bills.until(20)
    assert await rows_of(beta.mail) == list(range(20))
    await until_empty(beta.mail, "alpha")
    assert sorted(numbers_of(bills.bodies)) == list(range(20))


async def test_statement_that_rolls_back_fails_only_its_message(alpha: Station) -> None:
    """Some conflicts make the database roll back the whole commit, those of others included."""
    await create(alpha.mail, "books (number INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")

    async def handle(message: Message, tx: Transaction) -> None:
        number = int(message.body)
        await tx.execute("INSERT INTO books VALUES (?)", (number,))
        if number == 5 and message.attempt == 1:
            await tx.execute("INSERT INTO books VALUES (?)", (number,))

    await post_numbers(alpha, "alpha", range(10))
    await alpha.mail.consume("orders", handle, concurrency=10, retry=AT_ONCE)
    await until_waiting(alpha.mail, "orders", 0)
    assert await rows_of(alpha.mail) == list(range(10))
    assert await alpha.mail.dead_letters.list() == []


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
async def test_handler_cannot_end_the_commit_of_others(alpha: Station, statement: str) -> None:
    await create(alpha.mail)

    async def handle(message: Message, tx: Transaction) -> None:
        await book(message, tx)
        if int(message.body) == 5:
            await tx.execute(statement)

    await post_numbers(alpha, "alpha", range(10))
    await alpha.mail.consume("orders", handle, concurrency=10, retry=AT_ONCE)
    await until_dead(alpha.mail, 1)
    await until_waiting(alpha.mail, "orders", 0)
    assert await rows_of(alpha.mail) == [number for number in range(10) if number != 5]


async def test_send_without_tx_inside_transaction_is_rejected(alpha: Station) -> None:
    await create(alpha.mail)
    async with alpha.mail.transaction() as tx:
        await tx.execute("INSERT INTO books VALUES (1)")
        with pytest.raises(UsageError, match="pass tx=tx"):
            await alpha.mail.send("orders", b"", to="beta")
        with pytest.raises(UsageError, match="pass tx=tx"):
            await alpha.mail.send_many([OutgoingMessage(to="beta", queue="orders", body=b"")])
    with pytest.raises(UsageError, match="the transaction is over"):
        await tx.execute("SELECT 1")
    with pytest.raises(UsageError, match="the transaction is over"):
        tx.send("orders", b"", to="beta")
    assert await rows_of(alpha.mail) == [1]


def hurried(**settings: Any) -> dict[str, Any]:
    return {"config": msgspec.structs.replace(QUICK, transaction_timeout_s=0.1, **settings)}


async def test_transaction_that_takes_too_long_is_undone(tmp_path: Path) -> None:
    async with running_station("alpha", tmp_path, **hurried()) as alpha:
        await create(alpha.mail)
        with pytest.raises(TransactionAbortedError):
            async with alpha.mail.transaction() as tx:
                await tx.execute("INSERT INTO books VALUES (1)")
                # Others wait for it meanwhile, but not for ever.
                await alpha_waits(alpha.mail)
        assert await rows_of(alpha.mail) == []


async def alpha_waits(mail: DurableQueues) -> None:
    """Wait until somebody else could commit, who knows nothing of the transaction."""
    declared: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def declare() -> None:
        declared.set_result(await mail.declare("orders"))

    telling = asyncio.get_running_loop().create_task(declare(), context=Context())
    await asyncio.wait_for(declared, 5)
    await telling


async def test_slow_handler_loses_its_transaction_and_is_called_again(tmp_path: Path) -> None:
    async with running_station("alpha", tmp_path, **hurried()) as alpha:
        await create(alpha.mail)

        async def handle(message: Message, tx: Transaction) -> None:
            await book(message, tx)
            if message.attempt == 1:
                await asyncio.sleep(0.2)

        await alpha.mail.consume("orders", handle, retry=AT_ONCE)
        await post_numbers(alpha, "alpha", range(2))
        await until_waiting(alpha.mail, "orders", 0)
        assert await rows_of(alpha.mail) == [0, 1]


async def test_pulled_message_is_acknowledged_by_transaction(alpha: Station, beta: Station) -> None:
    await create(beta.mail)
    bills = await Recorder.at(alpha, "bills")
    await alpha.mail.send("orders", b"1", to="beta")
    (message,) = await beta.mail.pull("orders", timeout=5)
    tx = message.transaction()
    await tx.execute("INSERT INTO books VALUES (1)")
    tx.send("bills", b"1", to="alpha")
    await message.ack(tx)
    assert await rows_of(beta.mail) == [1]
    assert await beta.mail.admin.peek("orders") == []
    assert await bills.until(1) == [b"1"]


async def test_pulled_message_whose_transaction_is_lost_comes_again(tmp_path: Path) -> None:
    async with running_station("alpha", tmp_path, **hurried()) as alpha:
        await create(alpha.mail)
        await alpha.mail.send("orders", b"1", to="alpha")
        (message,) = await alpha.mail.pull("orders", timeout=5, retry=AT_ONCE)
        tx = message.transaction()
        await tx.execute("INSERT INTO books VALUES (1)")
        turn = tx._savepoint
        await eventually(lambda: turn is not None and turn.is_finished)
        with pytest.raises(TransactionAbortedError):
            await message.ack(tx)
        (again,) = await alpha.mail.pull("orders", timeout=5)
        await again.ack()
        assert await rows_of(alpha.mail) == []


async def test_handler_fails_when_its_sends_are_rejected(tmp_path: Path) -> None:
    config = msgspec.structs.replace(QUICK, outbox_messages_max=1)
    async with running_station("alpha", tmp_path, config=config) as alpha:
        await create(alpha.mail)

        async def handle(message: Message, tx: Transaction) -> None:
            await book(message, tx)
            tx.send("orders", message.body, to="nowhere")

        # The pause lets the queue be read again, and found empty, before the message is due.
        await alpha.mail.consume(
            "orders", handle, retry=RetryPolicy(max_attempts=3, initial_delay_s=0.05)
        )
        await post_numbers(alpha, "alpha", range(2))
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters.list()
        assert (dead.reason, dead.message.body, dead.failures) == ("failed", b"1", 3)
        assert "OutboxFullError" in dead.detail
        assert await rows_of(alpha.mail) == [0]

        async def is_done() -> bool:
            return not await alpha.mail.admin.peek("orders")

        await eventually(is_done, "nothing else waits")
