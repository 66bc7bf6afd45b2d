"""What a node does not have room for waits where it came from, and nobody starves for it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import OutboxFullError, Reject, StoreUnavailableError
from postroad.durable import DurableQueuesConfig, Message, Transaction
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import (
    LIMITS,
    QUICK,
    Recorder,
    numbers_of,
    post_numbers,
    running_pair,
    running_station,
    until_dead,
    until_empty,
)
from tests.support.durable.nodes import once, raising

FLOOD, EACH = 3_000, 20


def with_quota(**settings: Any) -> DurableQueuesConfig:
    """Small pages, so that there are many of them."""
    return msgspec.structs.replace(QUICK, batch_bytes_max=500, window_bytes=1_000, **settings)


@pytest.mark.parametrize("quota", ["sender_bytes_max", "inbox_bytes_max"])
async def test_full_inbox_pushes_back_and_loses_nothing(tmp_path: Path, quota: str) -> None:
    config = with_quota(**{quota: 3_000})
    async with running_pair(tmp_path, config=config) as (alpha, beta):
        await post_numbers(alpha, "beta", range(300), headers={"padding": "x" * 20})

        async def is_full() -> bool:
            bridge = (await alpha.mail.statistics()).peers["beta"].bridge
            return bridge is not None and bridge.last_error == "'beta' has no credit left"

        await eventually(is_full, "the bridge has heard that there is no room")
        waiting = len(await beta.mail.admin.peek("orders", limit=1_000))
        # One page more than there is room for may be on its way at most.
        assert 0 < waiting * 60 < 2 * 3_000
        recorder = await Recorder.at(beta)
        assert numbers_of(await recorder.until(300)) == list(range(300))
        await until_empty(alpha.mail, "beta")


async def test_sender_at_its_quota_does_not_block_others(tmp_path: Path) -> None:
    config = with_quota(sender_bytes_max=3_000)
    async with (
        running_pair(tmp_path, config=config) as (alpha, beta),
        running_station("gamma", tmp_path, beta, config=config) as gamma,
    ):
        await beta.mail.declare("letters")
        await post_numbers(alpha, "beta", range(300), headers={"padding": "x" * 20})
        recorder = await Recorder.at(beta, "letters")
        await gamma.mail.send("letters", b"1", to="beta")
        assert await recorder.until(1) == [b"1"]
        assert (await alpha.mail.statistics()).peers["beta"].depth > 0


async def test_message_larger_than_the_quota_is_taken_alone(tmp_path: Path) -> None:
    config = with_quota(sender_bytes_max=1_000)
    async with running_pair(tmp_path, config=config) as (alpha, beta):
        recorder = await Recorder.at(beta)
        bodies = [bytes([number]) * 5_000 for number in range(4)]
        for body in bodies:
            await alpha.mail.send("orders", body, to="beta")
        assert await recorder.until(4) == bodies


async def test_full_outbox_rejects_sends(tmp_path: Path) -> None:
    config = msgspec.structs.replace(QUICK, outbox_messages_max=10)
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path, config=config) as alpha,
    ):
        await post_numbers(alpha, "beta", range(10))
        with pytest.raises(OutboxFullError, match="10 messages wait for 'beta'"):
            await alpha.mail.send("orders", b"10", to="beta")
        # Others are not concerned.
        await alpha.mail.send("orders", b"", to="gamma")
        alpha.meet(beta)
        await until_empty(alpha.mail, "beta")
        await alpha.mail.send("orders", b"10", to="beta")
        await until_empty(alpha.mail, "beta")
        assert numbers_of(message.body for message in await beta.mail.admin.peek("orders")) == list(
            range(11)
        )


async def test_batch_larger_than_frame_is_dead_lettered(tmp_path: Path) -> None:
    """B10: what no connection carries does not block what comes after it."""
    limits = msgspec.structs.replace(LIMITS, frame_bytes_max=200_000)
    async with (
        running_station("alpha", tmp_path, limits=limits) as alpha,
        running_station("beta", tmp_path, alpha, limits=limits) as beta,
    ):
        recorder = await Recorder.at(beta)
        for body in (b"1", bytes(300_000), b"2"):
            await alpha.mail.send("orders", body, to="beta")
        # All of them would go in one window.
        alpha.meet(beta)
        assert await recorder.until(2) == [b"1", b"2"]
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters.list()
        assert (dead.reason, len(dead.message.body)) == ("too large", 300_000)
        await until_empty(alpha.mail, "beta")


async def test_flood_of_one_peer_does_not_keep_nineteen_others_waiting(tmp_path: Path) -> None:
    order: list[str] = []
    begun, done = asyncio.Event(), asyncio.Event()

    async def handle(message: Message, tx: Transaction) -> None:
        order.append(message.sender)
        begun.set()
        if len(order) == FLOOD + 19 * EACH:
            done.set()

    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_station("hub", tmp_path))
        # Small windows, so that the flood takes a while.
        config = msgspec.structs.replace(QUICK, batch_messages_max=5, window_bytes=300)
        senders = [
            await stack.enter_async_context(
                running_station(f"sender-{number}", tmp_path, config=config)
            )
            for number in range(20)
        ]
        await hub.mail.consume("orders", handle)
        await post_numbers(senders[0], "hub", range(FLOOD))
        for sender in senders[1:]:
            await post_numbers(sender, "hub", range(EACH))
        senders[0].meet(hub)
        await begun.wait()
        for sender in senders[1:]:
            sender.meet(hub)
        await asyncio.wait_for(done.wait(), 20)
    others = [index for index, name in enumerate(order) if name != senders[0].name]
    assert others[-1] < FLOOD // 2 + len(others)


async def test_sender_over_dead_letter_quota_keeps_its_messages(tmp_path: Path) -> None:
    config = with_quota(sender_dead_bytes_max=2_000)
    async with (
        running_pair(tmp_path, config=config) as (alpha, beta),
        running_station("gamma", tmp_path, beta, config=config) as gamma,
    ):

        def refuse(message: Message, tx: Transaction) -> None:
            if message.sender == "alpha":
                raise Reject("nobody can")

        await beta.mail.consume("orders", refuse)
        # They come one after the other, as those of somebody who posts for ever.
        for number in range(100):
            await alpha.mail.send("orders", b"%d" % number + bytes(100), to="beta")

        async def is_blocked() -> bool:
            return (await beta.mail.statistics()).blocked_senders == ["alpha"]

        await eventually(is_blocked, "what died of alpha is all that is kept")
        # What had been taken by then may die as well, and no more.
        assert await beta.mail.dead_letters.count() < 100
        assert await alpha.mail.bridges.peek("beta")
        await gamma.mail.send("orders", b"", to="beta")
        await until_empty(gamma.mail, "beta")

        async def is_through() -> bool:
            await beta.mail.dead_letters.drop_many()
            return not await alpha.mail.bridges.peek("beta")

        await eventually(is_through, "alpha's mail is taken again")
        await eventually(lambda: beta.mail.dispatchers.get("orders").failed == 100)
        await beta.mail.dead_letters.drop_many()
        assert (await beta.mail.statistics()).blocked_senders == []


async def test_dead_letters_of_a_sender_are_counted_again_after_a_restart(tmp_path: Path) -> None:
    config = with_quota(sender_dead_bytes_max=100)

    def refuse(message: Message, tx: Transaction) -> None:
        raise Reject("nobody can")

    for _ in range(2):
        async with running_station("beta", tmp_path, config=config) as beta:
            if not await beta.mail.dead_letters.count():
                await beta.mail.consume("orders", refuse)
                await beta.mail.send("orders", bytes(200), to="beta")
                await until_dead(beta.mail, 1)
            assert (await beta.mail.statistics()).blocked_senders == ["beta"]


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), RuntimeError("odd")])
async def test_expired_idempotency_keys_are_purged_after_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("postroad.durable.durable_queues._PURGE_KEYS_INTERVAL_S", 0.01)
    config = with_quota(idempotency_ttl_s=0.05)
    async with running_station("alpha", tmp_path, config=config) as alpha:
        failing = once(raising(error))
        with faults.arm_fault_point("durable.commit.before", lambda units: failing()):
            await eventually(lambda: alpha.mail.store.writer.commits > 3, "commits go on")
        first = await alpha.mail.send("orders", b"", to="beta", idempotency_key="k")

        async def is_forgotten() -> bool:
            return await alpha.mail.send("orders", b"", to="beta", idempotency_key="k") != first

        await eventually(is_forgotten, "the key is forgotten")
