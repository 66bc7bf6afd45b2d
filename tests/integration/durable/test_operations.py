"""What people and programs do with queues: dead letters, pulls, pauses, purges, numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroad.core.errors import NoSuchDeadLetter, Reject, UsageError
from postroad.durable import MailConfig

from .mail_pairs import (
    AT_ONCE,
    QUICK,
    Recorder,
    numbers_of,
    post_numbers,
    running_pair,
    running_station,
    until_dead,
    until_empty,
    until_waiting,
)

pytestmark = pytest.mark.integration


async def test_message_that_fails_too_often_is_a_dead_letter_and_can_be_retried(
    tmp_path: Path,
) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        recorder = Recorder(failures=3)
        await beta.mail.consume("orders", recorder, retry=AT_ONCE)
        await alpha.mail.post("beta", "orders", b"tea", key="a")
        await alpha.mail.post("beta", "orders", b"cake", key="a")
        assert await recorder.until(1) == [b"cake"]
        (dead,) = await beta.mail.dead_letters("orders")
        assert (dead.reason, dead.failures, dead.is_outbound) == ("failed", 3, False)
        assert (dead.letter.body, dead.detail) == (b"tea", "ValueError: as told")
        assert await beta.mail.dead_letter(dead.id) == dead
        await beta.mail.retry_dead(dead.id)
        assert await recorder.until(2) == [b"cake", b"tea"]
        assert await beta.mail.dead_letters() == []
        with pytest.raises(NoSuchDeadLetter):
            await beta.mail.retry_dead(dead.id)


async def test_rejected_message_is_not_tried_again(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        recorder = Recorder(failures=1, error=Reject)
        await beta.mail.consume("orders", recorder)
        await post_numbers(alpha, "beta", range(3))
        assert numbers_of(await recorder.until(2)) == [1, 2]
        await until_dead(beta.mail, 1)
        (dead,) = await beta.mail.dead_letters()
        assert (dead.reason, dead.failures) == ("rejected", 1)
        await beta.mail.drop_dead(dead.id)
        with pytest.raises(NoSuchDeadLetter):
            await beta.mail.dead_letter(dead.id)


async def test_all_dead_letters_are_listed_retried_or_dropped(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        recorder = Recorder(failures=20, error=Reject)
        await beta.mail.consume("orders", recorder)
        await post_numbers(alpha, "beta", range(20))
        await until_dead(beta.mail, 20)
        first = await beta.mail.dead_letters(limit=15)
        rest = await beta.mail.dead_letters(after=first[-1].id)
        assert [len(first), len(rest)] == [15, 5]
        for dead in rest:
            await beta.mail.drop_dead(dead.id)
        assert await beta.mail.retry_all_dead("others") == 0
        assert await beta.mail.retry_all_dead("orders") == 15
        assert numbers_of(await recorder.until(15)) == list(range(15))
        assert await beta.mail.drop_all_dead() == 0


async def test_unknown_queue_is_the_senders_dead_letter_until_it_is_opened(tmp_path: Path) -> None:
    async with (
        running_station("beta", tmp_path, accept=("open.*",)) as beta,
        running_station("alpha", tmp_path, beta) as alpha,
    ):
        await alpha.mail.post("beta", "open.tea", b"1")
        await alpha.mail.post("beta", "orders", b"2")
        await alpha.mail.post("beta", "open.cake", b"3")
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters()
        assert (dead.reason, dead.queue, dead.is_outbound) == ("unknown queue", "orders", True)
        assert "there is no queue 'orders', and 'alpha' may not open it" in dead.detail
        await until_waiting(beta.mail, "open.tea", 1)
        await until_waiting(beta.mail, "open.cake", 1)
        await beta.mail.declare("orders")
        await alpha.mail.retry_dead(dead.id)
        await until_waiting(beta.mail, "orders", 1)
        assert await alpha.mail.dead_letters() == []


async def test_pulled_messages_are_acknowledged_one_by_one(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        await post_numbers(alpha, "beta", range(4))
        await until_waiting(beta.mail, "orders", 4)
        one, two, three = await beta.mail.pull("orders", limit=3, timeout=5)
        await one.ack()
        with pytest.raises(UsageError, match="not yours any more"):
            await one.ack()
        two.nack("later", delay=0)
        three.release()
        again = await beta.mail.pull("orders", limit=1, timeout=5)
        assert numbers_of(it.body for it in again) == [2]
        (nacked,) = await pull_until(beta.mail.pull, b"1")
        assert nacked.attempt == 2


async def pull_until(pull: object, body: bytes) -> list[object]:
    raise AssertionError
