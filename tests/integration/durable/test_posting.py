"""Posting to a node and handling there: order, keys, delays, priorities, times to live."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from postroad.core.errors import (
    ConfigError,
    IdempotencyConflictError,
    MessageTooLargeError,
    UsageError,
)
from postroad.durable import DurableQueuesConfig, Message, OutgoingMessage, Transaction
from tests.support.durable.mail_pairs import (
    AT_ONCE,
    QUICK,
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


async def test_message_arrives_with_all_options(alpha: Station, beta: Station) -> None:
    recorder = await Recorder.at(beta)
    before = time.time()
    id = await alpha.mail.send(
        "orders", b"tea", to="beta", key="table 7", headers={"waiter": "Ann"}, reply_to="bills"
    )
    await recorder.until(1)
    (message,) = recorder.messages
    assert (message.body, message.queue, message.sender) == (b"tea", "orders", "alpha")
    assert (message.id, message.key, message.reply_to) == (id, "table 7", "bills")
    assert dict(message.headers) == {"waiter": "Ann"}
    assert (message.attempt, message.priority, message.in_reply_to) == (1, 0, None)
    assert before - 1 < message.sent_at <= message.received_at + 1 < time.time() + 2


async def test_messages_of_one_sender_are_handled_in_order(alpha: Station, beta: Station) -> None:
    recorder = await Recorder.at(beta)
    await post_numbers(alpha, "beta", range(500))
    assert numbers_of(await recorder.until(500)) == list(range(500))
    await until_empty(alpha.mail, "beta")


async def test_long_row_of_windows_is_delivered_when_the_peer_is_found(tmp_path: Path) -> None:
    config = msgspec.structs.replace(QUICK, batch_messages_max=5, window_bytes=64, windows_max=3)
    async with (
        running_station("alpha", tmp_path, config=config) as alpha,
        running_station("beta", tmp_path, alpha) as beta,
    ):
        recorder = await Recorder.at(beta)
        await post_numbers(alpha, "beta", range(400))
        alpha.meet(beta)
        assert numbers_of(await recorder.until(400)) == list(range(400))


async def test_large_backlog_is_delivered_when_the_peer_is_found(tmp_path: Path) -> None:
    async with (
        running_station("alpha", tmp_path) as alpha,
        running_station("beta", tmp_path, alpha) as beta,
    ):
        recorder = await Recorder.at(beta)
        padding = b" " * 20_000
        drafts = [
            OutgoingMessage(to="beta", queue="orders", body=b"%d" % n + padding) for n in range(400)
        ]
        await alpha.mail.send_many(drafts)
        alpha.meet(beta)
        assert numbers_of(await recorder.until(400)) == list(range(400))


async def test_key_is_handled_by_one_at_a_time_and_keys_side_by_side(tmp_path: Path) -> None:
    running: set[str] = set()
    handled: list[tuple[str, int]] = []
    most = 0
    done = asyncio.Event()

    async def handle(message: Message, tx: Transaction) -> None:
        nonlocal most
        assert message.key is not None and message.key not in running
        running.add(message.key)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(message.key)
        handled.append((message.key, int(message.body)))
        if len(handled) == 200:
            done.set()

    async with running_station("alpha", tmp_path) as alpha:
        for first in range(0, 50, 10):
            for number in range(4):
                await post_numbers(alpha, "alpha", range(first, first + 10), key=f"key {number}")
        await alpha.mail.consume("orders", handle, concurrency=8)
        await asyncio.wait_for(done.wait(), 10)
    assert most > 1
    for number in range(4):
        assert [delivery for key, delivery in handled if key == f"key {number}"] == list(range(50))


async def test_failed_message_is_tried_before_others_of_its_key(
    alpha: Station, beta: Station
) -> None:
    recorder = Recorder(failures=2)
    await post_numbers(alpha, "beta", range(5), key="same")
    await until_waiting(beta.mail, "orders", 5)
    await beta.mail.consume("orders", recorder, retry=AT_ONCE)
    assert numbers_of(await recorder.until(5)) == list(range(5))
    assert recorder.messages[0].attempt == 3
    assert recorder.attempts == [b"0", b"0", b"0", b"1", b"2", b"3", b"4"]
    assert await beta.mail.dead_letters.list() == []


async def test_delayed_message_is_not_handled_before_its_time(
    alpha: Station, beta: Station
) -> None:
    recorder = await Recorder.at(beta)
    posted = time.monotonic()
    await alpha.mail.send("orders", b"later", to="beta", delay=1.5)
    await alpha.mail.send("orders", b"now", to="beta")
    assert await recorder.until(2) == [b"now", b"later"]
    assert time.monotonic() - posted >= 1.49


async def test_urgent_messages_are_handled_first(alpha: Station, beta: Station) -> None:
    for priority in (0, 1, 5, 3):
        await alpha.mail.send("orders", b"%d" % priority, to="beta", priority=priority)
    await alpha.mail.send("orders", b"-1", to="beta", priority=-1)
    await until_empty(alpha.mail, "beta")
    recorder = await Recorder.at(beta)
    assert numbers_of(await recorder.until(5)) == [5, 3, 1, 0, -1]


async def test_message_that_waited_too_long_is_a_dead_letter(alpha: Station, beta: Station) -> None:
    await alpha.mail.send("orders", b"stale", to="beta", ttl=1.0)
    await until_empty(alpha.mail, "beta")
    recorder = Recorder()
    # What it waits for is that the time passes.
    await asyncio.sleep(1.1)
    await beta.mail.consume("orders", recorder)
    await alpha.mail.send("orders", b"fresh", to="beta", ttl=60)
    assert await recorder.until(1) == [b"fresh"]
    await until_dead(beta.mail, 1)
    (dead,) = await beta.mail.dead_letters.list()
    assert (dead.reason, dead.message.body, dead.peer) == ("expired", b"stale", "alpha")


async def test_message_that_expires_on_its_way_is_the_senders_dead_letter(tmp_path: Path) -> None:
    async with (
        running_station("alpha", tmp_path) as alpha,
        running_station("beta", tmp_path, alpha) as beta,
    ):
        await alpha.mail.send("orders", b"stale", to="beta", ttl=0.01)
        # What it waits for is that the time passes.
        await asyncio.sleep(0.05)
        alpha.meet(beta)
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters.list()
        assert (dead.reason, dead.is_outbound, dead.message.body) == ("expired", True, b"stale")
        assert await beta.mail.admin.peek("orders") == []


async def test_repeated_send_with_idempotency_key_is_sent_once(
    alpha: Station, beta: Station
) -> None:
    recorder = await Recorder.at(beta)
    posts = [alpha.mail.send("orders", b"tea", to="beta", idempotency_key="a") for _ in range(5)]
    assert len(set(await asyncio.gather(*posts))) == 1
    with pytest.raises(IdempotencyConflictError, match="'a' was used for another message"):
        await alpha.mail.send("orders", b"coffee", to="beta", idempotency_key="a")
    await alpha.mail.send("orders", b"last", to="beta", idempotency_key="b")
    assert await recorder.until(2) == [b"tea", b"last"]


async def test_node_sends_to_itself_without_bridge(alpha: Station) -> None:
    recorder = await Recorder.at(alpha)
    await post_numbers(alpha, "alpha", range(20))
    assert numbers_of(await recorder.until(20)) == list(range(20))
    assert {message.sender for message in recorder.messages} == {"alpha"}
    assert (await alpha.mail.bridges.status()).bridges == []


async def test_queue_that_was_emptied_after_a_restart_goes_on(tmp_path: Path) -> None:
    """What comes then must not be taken for what was there before."""
    async with running_station("alpha", tmp_path) as alpha:
        await alpha.mail.send("orders", b"before", to="alpha")
    async with running_station("alpha", tmp_path) as alpha:
        recorder = await Recorder.at(alpha)
        await recorder.until(1)
        await until_waiting(alpha.mail, "orders", 0)
        await alpha.mail.send("orders", b"after", to="alpha")
        assert await recorder.until(2) == [b"before", b"after"]


async def test_messages_wait_for_consumer_and_survive_restart(tmp_path: Path) -> None:
    """R13: what nobody handles is kept for whoever does later."""
    async with running_pair(tmp_path) as (alpha, _):
        await post_numbers(alpha, "beta", range(10))
        await until_empty(alpha.mail, "beta")
    async with running_station("beta", tmp_path) as beta:
        recorder = await Recorder.at(beta)
        assert numbers_of(await recorder.until(10)) == list(range(10))
        await beta.mail.send("orders", b"10", to="beta")
        assert numbers_of(await recorder.until(11)) == list(range(11))


async def test_oversized_message_is_refused_at_once(tmp_path: Path) -> None:
    """B10: whoever posts it hears of it."""
    config = DurableQueuesConfig(message_bytes_max=1_000)
    async with running_pair(tmp_path, config=config) as (alpha, _):
        with pytest.raises(MessageTooLargeError, match="message_bytes_max is 1000"):
            await alpha.mail.send("orders", bytes(1_000), to="beta")
        assert (await alpha.mail.statistics()).peers == {}


async def test_message_too_large_for_its_receiver_is_dead_at_its_sender(tmp_path: Path) -> None:
    """B10: what only the receiver finds too large is not lost either."""
    small = DurableQueuesConfig(message_bytes_max=1_000)
    async with (
        running_station("beta", tmp_path, config=small) as beta,
        running_station("alpha", tmp_path, beta) as alpha,
    ):
        recorder = await Recorder.at(beta)
        drafts = [
            OutgoingMessage(to="beta", queue="orders", body=body)
            for body in (b"1", bytes(2_000), b"2")
        ]
        await alpha.mail.send_many(drafts)
        assert await recorder.until(2) == [b"1", b"2"]
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters.list()
        assert (dead.reason, len(dead.message.body)) == ("too large", 2_000)


async def test_wrong_use_is_refused_with_a_reason(alpha: Station) -> None:
    for to, queue in (("", "orders"), ("beta", ""), ("beta", "two words")):
        with pytest.raises(ConfigError):
            await alpha.mail.send(queue, b"", to=to)
    for fields in ({"delay": -1}, {"ttl": float("nan")}, {"priority": 5_000}, {"key": "\0"}):
        with pytest.raises(ConfigError):
            await alpha.mail.send("orders", b"", to="beta", **fields)
    with pytest.raises(UsageError, match="a body is bytes, not str"):
        await alpha.mail.send("orders", "text", to="beta")  # type: ignore[arg-type]
    await alpha.mail.consume("orders", Recorder())
    with pytest.raises(UsageError, match="has a consumer already"):
        await alpha.mail.consume("orders", Recorder())
    assert (await alpha.mail.statistics()).peers == {}
