"""Handlers that end in unusual ways, and consumers that come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from postroad.core.errors import UsageError
from postroad.durable import Message, RetryPolicy, Transaction
from postroad.durable.consumers import consumer
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import (
    AT_ONCE,
    QUICK,
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    running_station,
    until_dead,
    until_waiting,
)


async def test_handler_whose_own_task_is_cancelled_fails_and_others_go_on(alpha: Station) -> None:
    recorder = Recorder()

    async def handle(message: Message, tx: Transaction) -> None:
        if message.body == b"bad":
            # A library gives up something of its own; nobody cancelled the handler.
            task = asyncio.create_task(asyncio.sleep(DEADLINE_S))
            task.cancel()
            await task
        await recorder(message, tx)

    await alpha.mail.consume("orders", handle, retry=AT_ONCE)
    await alpha.mail.send("orders", b"bad", to="alpha")
    await post_numbers(alpha, "alpha", range(3))
    assert numbers_of(await recorder.until(3)) == [0, 1, 2]
    await until_dead(alpha.mail, 1)
    (dead,) = await alpha.mail.dead_letters.list()
    assert (dead.message.body, dead.reason, dead.failures) == (b"bad", "failed", 3)
    assert "what the handler waited for was cancelled" in dead.detail


async def test_error_without_a_readable_text_is_a_failure_like_any_other(alpha: Station) -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    recorder = Recorder()

    async def handle(message: Message, tx: Transaction) -> None:
        if message.body == b"bad":
            raise UnreadableError
        await recorder(message, tx)

    await alpha.mail.consume("orders", handle, retry=AT_ONCE)
    await alpha.mail.send("orders", b"bad")
    await post_numbers(alpha, "alpha", range(3))
    assert numbers_of(await recorder.until(3)) == [0, 1, 2]
    await until_dead(alpha.mail, 1)
    (dead,) = await alpha.mail.dead_letters.list()
    assert (dead.reason, dead.failures) == ("failed", 3)
    assert dead.detail == "UnreadableError"


async def test_each_handler_has_its_own_time_though_one_hides_that_it_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_WATCH_S", 0.01)

    async def handle(message: Message, tx: Transaction) -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            if message.body == b"0":
                raise ConnectionError("closed by a library") from None
            raise

    config = msgspec.structs.replace(QUICK, handler_timeout_s=0.05)
    async with running_station("alpha", tmp_path, config=config) as alpha:
        await alpha.mail.consume("orders", handle, retry=RetryPolicy(max_attempts=1))
        await post_numbers(alpha, "alpha", range(3))
        await until_dead(alpha.mail, 3)
        details = [dead.detail for dead in await alpha.mail.dead_letters.list()]
        too_long = "TimeoutError: the handler took more than 0.05 s"
        assert details == ["ConnectionError: closed by a library", too_long, too_long]


async def test_an_error_that_is_final_makes_a_dead_letter_at_once(alpha: Station) -> None:
    attempts: list[bytes] = []

    async def handle(message: Message, tx: Transaction) -> None:
        attempts.append(message.body)
        raise UnicodeError(message.body) if message.body == b"odd" else ConnectionError("away")

    retry = msgspec.structs.replace(AT_ONCE, give_up_on=ValueError)
    await alpha.mail.consume("orders", handle, retry=retry)
    await alpha.mail.send("orders", b"odd", to="alpha", key="k")
    await alpha.mail.send("orders", b"unlucky", to="alpha", key="k")
    await until_dead(alpha.mail, 2)
    letters = [
        (letter.message.body, letter.reason, letter.failures)
        for letter in await alpha.mail.dead_letters.list()
    ]
    assert sorted(letters) == [(b"odd", "rejected", 1), (b"unlucky", "failed", 3)]
    assert attempts == [b"odd", b"unlucky", b"unlucky", b"unlucky"]


async def test_pulled_messages_have_no_errors_to_filter(alpha: Station) -> None:
    for retry in (RetryPolicy(retry_on=OSError), RetryPolicy(give_up_on=OSError)):
        with pytest.raises(UsageError, match=r"call its nack\(\)"):
            await alpha.mail.pull("orders", retry=retry)


async def test_statements_begun_together_by_a_handler_are_of_one_commit(alpha: Station) -> None:
    attempts: list[int] = []

    async def handle(message: Message, tx: Transaction) -> None:
        attempts.append(message.attempt)
        insert = "INSERT INTO books VALUES (?)"
        await asyncio.gather(*(tx.execute(insert, (number,)) for number in range(3)))

    async with alpha.mail.transaction() as tx:
        await tx.execute("CREATE TABLE books (number INTEGER)")
    await alpha.mail.consume("orders", handle, retry=AT_ONCE)
    await alpha.mail.send("orders", b"", to="alpha")
    await until_waiting(alpha.mail, "orders", 0)
    async with alpha.mail.transaction() as tx:
        assert await tx.execute("SELECT number FROM books") == [(0,), (1,), (2,)]
    assert attempts == [1]
    assert await alpha.mail.dead_letters.list() == []


async def test_next_consumer_may_begin_when_the_one_before_has_ended(alpha: Station) -> None:
    begun, gate, recorder = asyncio.Event(), asyncio.Event(), Recorder()

    async def handle_slowly(message: Message, tx: Transaction) -> None:
        begun.set()
        await gate.wait()

    await alpha.mail.consume("orders", handle_slowly)
    await alpha.mail.send("orders", b"before", to="alpha")
    await begun.wait()
    stopping = asyncio.create_task(alpha.mail.stop_consuming("orders"))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="has a consumer already"):
        await alpha.mail.consume("orders", recorder)
    gate.set()
    await stopping
    await alpha.mail.consume("orders", recorder)
    await post_numbers(alpha, "alpha", range(3))
    assert numbers_of(await recorder.until(3)) == [0, 1, 2]


async def test_queue_that_is_pulled_from_is_not_consumed_in_another_way(alpha: Station) -> None:
    assert await alpha.mail.pull("orders", timeout=0.01) == []
    for options in ({"retry": RetryPolicy(max_attempts=1)}, {"ordered_by_key": False}):
        with pytest.raises(UsageError, match="in use already, with other settings"):
            await alpha.mail.consume("orders", Recorder(), **options)
    recorder = await Recorder.at(alpha)
    await post_numbers(alpha, "alpha", range(2))
    assert numbers_of(await recorder.until(2)) == [0, 1]
