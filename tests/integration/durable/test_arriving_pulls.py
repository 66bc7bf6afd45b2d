"""Messages that are pulled while their own commit is under way, whatever becomes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroad.core.errors import StoreUnavailableError, TransactionAbortedError
from postroad.durable import PulledMessage
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.mail_pairs import (
    Station,
    running_pair,
    running_station,
    until_empty,
    until_waiting,
)

from .arrivals import held_arrival, until_settled


async def pulling(station: Station) -> asyncio.Task[list[PulledMessage]]:
    """Wait for a message of a queue that is known to be empty."""
    await station.mail.send("orders", b"ready", to=station.name)
    (message,) = await station.mail.pull("orders", timeout=DEADLINE_S)
    await message.ack()
    pulling = asyncio.create_task(station.mail.pull("orders", timeout=DEADLINE_S))
    # It begins with a commit, which is not to wait for the one that is held.
    before = station.mail.store.writer.commits
    await eventually(lambda: station.mail.store.writer.commits > before, "it has begun")
    return pulling


@pytest.mark.parametrize("is_lost", [False, True])
async def test_message_is_pulled_while_it_arrives(tmp_path: Path, is_lost: bool) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        pulled = await pulling(beta)
        with held_arrival() as commit:
            await alpha.mail.send("orders", b"tea", to="beta")
            await commit.begun()
            (message,) = await pulled
            ack = asyncio.create_task(message.ack())
            await asyncio.sleep(0)
            assert not ack.done()
            if is_lost:
                commit.fail(StoreUnavailableError("away"))
                with pytest.raises(TransactionAbortedError):
                    await ack
                (again,) = await beta.mail.pull("orders", timeout=DEADLINE_S)
                assert (again.body, again.id, again.attempt) == (b"tea", message.id, 1)
                await again.ack()
            else:
                commit.go_on()
                await ack
        await until_settled(alpha, beta)


async def test_pulled_message_that_did_not_arrive_is_not_acknowledged_later(
    alpha: Station, beta: Station
) -> None:
    pulled = await pulling(beta)
    with held_arrival() as commit:
        await alpha.mail.send("orders", b"tea", to="beta")
        await commit.begun()
        (message,) = await pulled
        commit.fail(StoreUnavailableError("away"))
        # The second time it arrives while the first one is still in somebody's hands.
        await until_empty(alpha.mail, "beta")
        with pytest.raises(TransactionAbortedError, match="is redelivered"):
            await message.ack()
        (again,) = await beta.mail.pull("orders", timeout=DEADLINE_S)
        await again.ack()
    await until_settled(alpha, beta)


async def test_message_that_did_not_arrive_is_not_acknowledged_at_a_stop(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        pulled = await pulling(beta)
        with held_arrival() as commit:
            await alpha.mail.send("orders", b"tea", to="beta")
            await commit.begun()
            (message,) = await pulled
            tx = message.transaction()
            tx.send("bills", b"tea", to="nowhere")
            ack = asyncio.create_task(message.ack(tx))
            stopping = asyncio.create_task(beta.mail.stop())
            for _ in range(20):
                await asyncio.sleep(0)
            commit.fail(StoreUnavailableError("away"))
            with pytest.raises(TransactionAbortedError):
                await ack
            await stopping
        async with running_station("beta", tmp_path, alpha) as again:
            alpha.meet(again)
            await until_waiting(again.mail, "orders", 1)
            assert await again.mail.bridges.peek("nowhere") == []
