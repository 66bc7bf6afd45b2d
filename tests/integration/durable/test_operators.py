"""What operators do to the mail of nodes that run: bridges that rest, queues that are moved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroad.core.errors import UsageError
from postroad.durable import Message, Transaction
from postroad.durable.bridges.bridge import BridgeState
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import (
    AT_ONCE,
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    running_pair,
    running_station,
    until_dead,
    until_empty,
    until_waiting,
)

from .test_external_bridge import BridgeProcess


async def until_paused(station: Station, peer: str = "beta") -> None:
    async def is_paused() -> bool:
        health = {
            bridge.peer: bridge.state for bridge in (await station.mail.bridges.status()).bridges
        }
        return health.get(peer) == BridgeState.PAUSED

    await eventually(is_paused, "the bridge rests")


async def waiting_for(station: Station, peer: str = "beta") -> int:
    return (await station.mail.statistics()).peers[peer].depth


async def test_nothing_is_sent_while_a_bridge_is_paused(alpha: Station, beta: Station) -> None:
    recorder = await Recorder.at(beta)
    await post_numbers(alpha, "beta", range(3))
    assert numbers_of(await recorder.until(3)) == [0, 1, 2]
    await until_empty(alpha.mail, "beta")
    await alpha.mail.bridges.pause("beta")
    await until_paused(alpha)
    await post_numbers(alpha, "beta", range(3, 6))
    await until_paused(alpha)
    assert (await waiting_for(alpha), len(recorder.messages)) == (3, 3)
    await alpha.mail.bridges.resume("beta")
    assert numbers_of(await recorder.until(6)) == [0, 1, 2, 3, 4, 5]
    await until_empty(alpha.mail, "beta")


async def test_a_bridge_is_paused_in_the_midst_of_sending(alpha: Station, beta: Station) -> None:
    recorder = await Recorder.at(beta)
    posting = asyncio.create_task(post_numbers(alpha, "beta", range(2_000)))
    await recorder.until(1)
    await alpha.mail.bridges.pause("beta")
    await posting
    await until_paused(alpha)
    await alpha.mail.bridges.resume("beta")
    assert numbers_of(await recorder.until(2_000)) == [*range(2_000)]


async def test_a_bridge_stays_paused_after_a_restart(tmp_path: Path) -> None:
    async with running_station("beta", tmp_path) as beta:
        recorder = await Recorder.at(beta)
        async with running_station("alpha", tmp_path, beta) as alpha:
            beta.meet(alpha)
            await alpha.mail.bridges.pause("beta")
            await post_numbers(alpha, "beta", range(2))
        async with running_station("alpha", tmp_path, beta) as alpha:
            await until_paused(alpha)
            assert (await waiting_for(alpha), recorder.messages) == (2, [])
            await alpha.mail.bridges.resume("beta")
            assert numbers_of(await recorder.until(2)) == [0, 1]


async def test_external_bridge_process_can_be_paused(tmp_path: Path) -> None:
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path, beta, bridge=False) as alpha,
    ):
        recorder = await Recorder.at(beta)
        bridge = await BridgeProcess.start(tmp_path, alpha)
        try:
            assert "Carrying the mail" in await bridge.line()
            await post_numbers(alpha, "beta", range(2))
            await recorder.until(2)
            await until_empty(alpha.mail, "beta")
            await alpha.mail.bridges.pause("beta")
            await post_numbers(alpha, "beta", range(2, 4))
            await until_paused(alpha)
            assert (await waiting_for(alpha), len(recorder.messages)) == (2, 2)
            await alpha.mail.bridges.resume("beta")
            assert numbers_of(await recorder.until(4)) == [0, 1, 2, 3]
        finally:
            await bridge.kill()


async def test_a_queue_in_use_is_moved_only_while_it_rests(alpha: Station) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(message: Message, tx: Transaction) -> None:
        begun.set()
        await go_on.wait()

    await alpha.mail.consume("orders", work)
    await post_numbers(alpha, "alpha", range(5))
    await begun.wait()
    with pytest.raises(UsageError, match="pause it"):
        await alpha.mail.admin.move("orders", "elsewhere")
    await alpha.mail.admin.pause("orders")
    # One is still being handled, and must not come a second time.
    with pytest.raises(UsageError, match="in flight"):
        await alpha.mail.admin.move("orders", "elsewhere")
    go_on.set()
    await until_waiting(alpha.mail, "orders", 4)

    async def moved() -> bool:
        try:
            return await alpha.mail.admin.move("orders", "elsewhere") == 4
        except UsageError:
            return False

    await eventually(moved, "nothing is in hand any more")
    recorder = await Recorder.at(alpha, "elsewhere")
    assert numbers_of(await recorder.until(4)) == [1, 2, 3, 4]
    # The queue that was emptied goes on with what comes from now on.
    begun.clear()
    await alpha.mail.admin.resume("orders")
    await post_numbers(alpha, "alpha", [9])
    async with asyncio.timeout(10):
        await begun.wait()


async def test_retried_dead_letter_counts_retries(alpha: Station, beta: Station) -> None:
    recorder = await Recorder.at(beta, failures=6, retry=AT_ONCE)
    await alpha.mail.send("orders", b"tea", to="beta", headers={"colour": "green"})
    await until_dead(beta.mail, 1)
    (dead,) = await beta.mail.dead_letters.list()
    assert dead.retried == 0
    await beta.mail.dead_letters.retry(dead.id)
    await eventually(lambda: _has_died_again(beta), "it dies again")
    await beta.mail.dead_letters.retry_many()
    await recorder.until(1)
    headers = recorder.messages[0].headers
    assert headers == {"colour": "green", "postroad-retried": "2"}


async def _has_died_again(station: Station) -> bool:
    dead = await station.mail.dead_letters.list()
    return [dead_letter.retried for dead_letter in dead] == [1]


async def test_rejected_dead_letter_counts_retries(tmp_path: Path) -> None:
    async with running_pair(tmp_path, accepted_queues=("open",)) as (alpha, _):
        await alpha.mail.send("closed", b"tea", to="beta")
        for retried in range(3):

            async def is_dead(expected: int = retried) -> bool:
                return [
                    dead_letter.retried for dead_letter in await alpha.mail.dead_letters.list()
                ] == [expected]

            await eventually(is_dead, f"it has died {retried + 1} times")
            await alpha.mail.dead_letters.retry_many()
