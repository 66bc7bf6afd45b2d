"""What people and programs do with queues: dead letters, pulls, pauses, purges, numbers."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest

from postroad.core.errors import DeadLetterNotFoundError, Reject, ReplyTimeoutError, UsageError
from postroad.durable import Message, RetryPolicy, Transaction
from postroad.durable.consumers import consumer
from postroad.durable.producer import MessageEncoder, OutgoingMessage, SendMutation
from tests.support.deadlines import DEADLINE_S, eventually
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


async def test_message_that_fails_too_often_is_a_dead_letter_and_can_be_retried(
    alpha: Station, beta: Station
) -> None:
    recorder = await Recorder.at(beta, failures=3, retry=AT_ONCE)
    await alpha.mail.send("orders", b"tea", to="beta", key="a")
    await alpha.mail.send("orders", b"cake", to="beta", key="a")
    assert await recorder.until(1) == [b"cake"]
    (dead,) = await beta.mail.dead_letters.list("orders")
    assert (dead.reason, dead.failures, dead.is_outbound) == ("failed", 3, False)
    assert (dead.message.body, dead.detail) == (b"tea", "ValueError: as told")
    assert await beta.mail.dead_letters.get(dead.id) == dead
    await beta.mail.dead_letters.retry(dead.id)
    assert await recorder.until(2) == [b"cake", b"tea"]
    assert await beta.mail.dead_letters.list() == []
    with pytest.raises(DeadLetterNotFoundError):
        await beta.mail.dead_letters.retry(dead.id)


async def test_rejected_message_is_not_tried_again(alpha: Station, beta: Station) -> None:
    recorder = await Recorder.at(beta, failures=1, error=Reject)
    await post_numbers(alpha, "beta", range(3))
    assert numbers_of(await recorder.until(2)) == [1, 2]
    await until_dead(beta.mail, 1)
    (dead,) = await beta.mail.dead_letters.list()
    assert (dead.reason, dead.failures) == ("rejected", 1)
    await beta.mail.dead_letters.drop(dead.id)
    with pytest.raises(DeadLetterNotFoundError):
        await beta.mail.dead_letters.get(dead.id)


async def test_all_dead_letters_are_listed_retried_dropped(alpha: Station, beta: Station) -> None:
    recorder = await Recorder.at(beta, failures=20, error=Reject)
    await post_numbers(alpha, "beta", range(20))
    await until_dead(beta.mail, 20)
    first = await beta.mail.dead_letters.list(limit=15)
    rest = await beta.mail.dead_letters.list(after=first[-1].id)
    assert [len(first), len(rest)] == [15, 5]
    for dead in rest:
        await beta.mail.dead_letters.drop(dead.id)
    assert await beta.mail.dead_letters.retry_many(queue="others") == 0
    assert await beta.mail.dead_letters.retry_many(queue="orders") == 15
    assert numbers_of(await recorder.until(15)) == list(range(15))
    assert await beta.mail.dead_letters.drop_many() == 0


async def test_unknown_queue_is_the_senders_dead_letter_until_it_is_opened(tmp_path: Path) -> None:
    async with (
        running_station("beta", tmp_path, accepted_queues=("open.*",)) as beta,
        running_station("alpha", tmp_path, beta) as alpha,
    ):
        await alpha.mail.send("open.tea", b"1", to="beta")
        await alpha.mail.send("orders", b"2", to="beta")
        await alpha.mail.send("open.cake", b"3", to="beta")
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters.list()
        assert (dead.reason, dead.queue, dead.is_outbound) == ("unknown queue", "orders", True)
        assert "there is no queue 'orders', and 'alpha' may not open it" in dead.detail
        await until_waiting(beta.mail, "open.tea", 1)
        await until_waiting(beta.mail, "open.cake", 1)
        await beta.mail.declare("orders")
        await alpha.mail.dead_letters.retry(dead.id)
        await until_waiting(beta.mail, "orders", 1)
        assert await alpha.mail.dead_letters.list() == []


async def test_pulled_messages_are_acknowledged_one_by_one(alpha: Station, beta: Station) -> None:
    await post_numbers(alpha, "beta", range(4))
    await until_waiting(beta.mail, "orders", 4)
    one, two, three = await beta.mail.pull("orders", limit=3, timeout=5)
    await one.ack()
    with pytest.raises(UsageError, match="released or redelivered already"):
        await one.ack()
    two.nack("later", delay=0)
    three.release()
    again = await beta.mail.pull("orders", limit=1, timeout=5)
    assert numbers_of(message.body for message in again) == [2]
    rest: list[int] = []
    while len(rest) < 2:
        rest += numbers_of(
            message.body for message in await beta.mail.pull("orders", limit=2, timeout=5)
        )
    assert sorted(rest) == [1, 3]


async def test_nacked_message_comes_again_after_its_delay(alpha: Station, beta: Station) -> None:
    await alpha.mail.send("orders", b"tea", to="beta")
    (message,) = await beta.mail.pull("orders", timeout=5)
    message.nack("not now", delay=0.05)
    (message,) = await beta.mail.pull("orders", timeout=5)
    assert (message.body, message.attempt) == (b"tea", 2)
    await message.ack()
    assert await beta.mail.pull("orders", timeout=0.05) == []
    await until_waiting(beta.mail, "orders", 0)


async def test_unacknowledged_pulled_message_is_redelivered(tmp_path: Path) -> None:
    config = msgspec.structs.replace(QUICK, ack_timeout_s=1.0)
    async with running_pair(tmp_path, config=config) as (alpha, beta):
        await alpha.mail.send("orders", b"tea", to="beta")
        (forgotten,) = await beta.mail.pull("orders", timeout=5, retry=AT_ONCE)
        (message,) = await beta.mail.pull("orders", timeout=5)
        assert (message.body, message.attempt) == (b"tea", 2)
        await message.ack()
        with pytest.raises(UsageError, match="released or redelivered already"):
            await forgotten.ack()


async def test_message_pulled_when_the_node_stops_comes_again(tmp_path: Path) -> None:
    short = msgspec.structs.replace(QUICK, ack_timeout_s=0.05)
    async with running_station("alpha", tmp_path, config=short) as alpha:
        await alpha.mail.send("orders", b"tea", to="alpha")
        (pulled,) = await alpha.mail.pull("orders", timeout=DEADLINE_S)
    async with running_station("alpha", tmp_path) as alpha:
        (message,) = await alpha.mail.pull("orders", timeout=DEADLINE_S)
        assert (message.body, message.attempt) == (b"tea", 1)
        # The lease of the first one is over meanwhile, and gives nothing to anybody.
        assert await alpha.mail.pull("orders", timeout=0.2) == []
        await message.ack()
        with pytest.raises(UsageError):
            await pulled.ack()
        assert await alpha.mail.admin.peek("orders") == []


async def test_pull_ends_when_the_node_stops(alpha: Station) -> None:
    pulling = asyncio.create_task(alpha.mail.pull("orders"))
    await eventually(lambda: alpha.mail.dispatchers.find("orders"), "it waits for a message")
    await alpha.mail.stop()
    with pytest.raises(UsageError, match="not running"):
        await asyncio.wait_for(pulling, DEADLINE_S)


@pytest.mark.parametrize("end", ["nack", "release"])
async def test_released_message_rolls_its_transaction_back(alpha: Station, end: str) -> None:
    await alpha.mail.send("orders", b"tea", to="alpha")
    (message,) = await alpha.mail.pull("orders", timeout=DEADLINE_S, retry=AT_ONCE)
    tx = message.transaction()
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await tx.execute("INSERT INTO nowhere VALUES (1)")
    await tx.execute("CREATE TABLE somewhere (x INTEGER)")
    getattr(message, end)()
    # Sooner than the transaction would be lost for taking too long, and in the same task.
    async with asyncio.timeout(DEADLINE_S / 2):
        await alpha.mail.send("orders", b"cake", to="alpha")
    async with alpha.mail.transaction() as tx:
        tables = await tx.execute("SELECT 1 FROM sqlite_master WHERE name = 'somewhere'")
    assert tables == []


async def test_reply_of_wrong_sender_is_ignored(tmp_path: Path) -> None:
    """Ids can be guessed; the name of the sender is that of its connection."""
    request_received: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    async with (
        running_pair(tmp_path) as (alpha, beta),
        running_station("gamma", tmp_path, alpha) as gamma,
    ):
        await beta.mail.consume("orders", lambda message, tx: request_received.set_result(message))
        request = asyncio.create_task(
            alpha.mail.request("orders", b"?", to="beta", timeout=DEADLINE_S)
        )
        question = await request_received
        for station, body in ((gamma, b"forged"), (beta, b"true")):
            clerk = MessageEncoder(QUICK, station.name)
            answer = OutgoingMessage(queue="_replies", body=body, to="alpha")
            posts = [clerk.encode(answer, in_reply_to=question.id)]
            posting = SendMutation(posts, asyncio.get_running_loop().create_future())
            station.mail.store.submit(posting)
            await posting.done
            await until_empty(station.mail, "alpha")
        reply = await request
        assert (reply.body, reply.sender) == (b"true", "beta")
        assert (await alpha.mail.statistics()).unclaimed_replies == 1


async def test_request_waits_for_its_reply(alpha: Station, beta: Station) -> None:
    await beta.mail.consume("orders", lambda message, tx: tx.reply(message, message.body * 2))
    requests = (alpha.mail.request("orders", b"%d" % n, to="beta", timeout=5) for n in range(20))
    replies = await asyncio.gather(*requests)
    assert [reply.body for reply in replies] == [b"%d" % n * 2 for n in range(20)]
    assert {reply.sender for reply in replies} == {"beta"}
    assert (await alpha.mail.statistics()).unclaimed_replies == 0


async def test_reply_that_comes_too_late_is_counted(alpha: Station, beta: Station) -> None:
    with pytest.raises(ReplyTimeoutError, match="no reply from queue 'orders' of 'beta'"):
        await alpha.mail.request("orders", b"", to="beta", timeout=0.05)
    await beta.mail.consume("orders", lambda message, tx: tx.reply(message, b"late"))

    async def is_counted() -> bool:
        return (await alpha.mail.statistics()).unclaimed_replies == 1

    await eventually(is_counted, "the reply is counted")


async def test_paused_queue_rests_also_after_a_restart(tmp_path: Path) -> None:
    async with running_station("alpha", tmp_path) as alpha:
        recorder = await Recorder.at(alpha)
        await alpha.mail.admin.pause("orders")
        await post_numbers(alpha, "alpha", range(3))
    async with running_station("alpha", tmp_path) as alpha:
        await alpha.mail.consume("orders", recorder)
        assert (await alpha.mail.statistics()).queues["orders"].is_paused
        assert len(await alpha.mail.admin.peek("orders")) == 3
        assert recorder.bodies == []
        await alpha.mail.admin.resume("orders")
        assert numbers_of(await recorder.until(3)) == [0, 1, 2]


async def test_queue_is_browsed_and_purged(alpha: Station, beta: Station) -> None:
    await post_numbers(alpha, "beta", range(10))
    await until_waiting(beta.mail, "orders", 10)
    assert numbers_of(
        message.body for message in await beta.mail.admin.peek("orders", limit=4)
    ) == [*range(4)]
    assert await beta.mail.admin.purge("orders") == 10
    assert await beta.mail.admin.peek("orders") == []
    recorder = await Recorder.at(beta)
    await alpha.mail.send("orders", b"11", to="beta")
    assert numbers_of(await recorder.until(1)) == [11]


async def test_outbox_is_browsed_and_purged_without_a_gap(tmp_path: Path) -> None:
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path) as alpha,
    ):
        await post_numbers(alpha, "beta", range(10))
        assert numbers_of(message.body for message in await alpha.mail.bridges.peek("beta")) == [
            *range(10)
        ]
        waiting = (await alpha.mail.statistics()).peers["beta"]
        assert (waiting.depth, waiting.oldest_age_s is None) == (10, False)
        assert await alpha.mail.bridges.purge("beta") == 10
        emptied = (await alpha.mail.statistics()).peers["beta"]
        assert (emptied.depth, emptied.oldest_age_s, emptied.sent) == (0, None, 10)
        assert await alpha.mail.bridges.peek("beta") == []
        await alpha.mail.send("orders", b"10", to="beta")
        alpha.meet(beta)
        await until_empty(alpha.mail, "beta")
        assert numbers_of(message.body for message in await beta.mail.admin.peek("orders")) == [10]


async def test_statistics_count_messages_by_place(alpha: Station, beta: Station) -> None:
    await post_numbers(alpha, "nowhere", range(3))
    recorder = await Recorder.at(beta, failures=1, retry=AT_ONCE)
    await post_numbers(alpha, "beta", range(5))
    await recorder.until(5)
    await until_empty(alpha.mail, "beta")
    sent, received = await alpha.mail.statistics(), await beta.mail.statistics()
    assert (sent.peers["nowhere"].depth, sent.peers["nowhere"].bridge) == (3, None)
    assert sent.peers["nowhere"].oldest_age_s is not None
    assert (sent.peers["beta"].sent, sent.peers["beta"].oldest_age_s) == (5, None)
    bridge = sent.peers["beta"].bridge
    assert bridge is not None and (bridge.sent, bridge.last_error) == (5, None)
    queue = received.queues["orders"]
    assert (queue.depth, queue.in_flight, queue.has_consumer) == (0, 0, True)
    assert (queue.handled, queue.failed) == (5, 1)
    assert sent.commits > 0 and sent.sent_per_s > 0 and received.handled_per_s > 0
    health = await alpha.mail.bridges.status()
    assert [bridge.peer for bridge in health.bridges] == ["beta"]


async def test_a_message_that_is_tried_again_waits_and_is_not_handled(alpha: Station) -> None:
    mail, recorder = alpha.mail, Recorder(failures=1)
    await mail.consume(
        "orders", recorder, retry=RetryPolicy(initial_delay_s=3_600, max_delay_s=3_600)
    )
    await mail.send("orders", b"tea", to="alpha", key="ann")

    async def has_failed() -> bool:
        return bool(
            [pending for pending in await mail.admin.peek_pending("orders") if pending.failures]
        )

    await eventually(has_failed, "the first attempt")
    await mail.send("orders", b"cake", to="alpha", key="ann")

    async def is_held() -> bool:
        return any(pending.is_blocked for pending in await mail.admin.peek_pending("orders"))

    await eventually(is_held, "the second one waits for the first")
    tea, cake = sorted(
        await mail.admin.peek_pending("orders"), key=lambda pending: pending.is_blocked
    )
    assert (tea.message.body, tea.failures, tea.error) == (b"tea", 1, "ValueError: as told")
    assert tea.due_ms > tea.message.sent_ms + 1_000_000
    assert (cake.message.body, cake.failures, cake.due_ms) == (b"cake", 0, 0)
    assert await mail.admin.find_pending("orders", tea.message.id) == [tea]
    statistics = await mail.statistics()
    queue = statistics.queues["orders"]
    assert (queue.depth, queue.handled, queue.failed) == (2, 0, 1)
    assert queue.oldest_age_s is not None
    assert (statistics.handled_per_s, statistics.failed_per_s > 0) == (0, True)


async def test_a_message_for_later_does_not_wait_yet(alpha: Station) -> None:
    await alpha.mail.send("orders", b"tea", to="alpha", delay=3_600)
    queue = (await alpha.mail.statistics()).queues["orders"]
    assert (queue.depth, queue.oldest_age_s) == (1, None)
    (later,) = await alpha.mail.admin.peek_pending("orders")
    assert later.due_ms > later.message.sent_ms + 1_000_000


async def test_some_of_the_dead_those_that_died_first(alpha: Station) -> None:
    recorder = await Recorder.at(alpha, failures=6, error=Reject)
    await post_numbers(alpha, "alpha", range(6))
    await until_dead(alpha.mail, 6)
    assert await alpha.mail.dead_letters.drop_many(limit=2) == 2
    assert numbers_of(
        dead_letter.message.body for dead_letter in await alpha.mail.dead_letters.list()
    ) == [
        2,
        3,
        4,
        5,
    ]
    assert await alpha.mail.dead_letters.retry_many(queue="orders", limit=3) == 3
    assert numbers_of(await recorder.until(3)) == [2, 3, 4]
    assert await alpha.mail.dead_letters.retry_many(limit=10) == 1


async def test_handler_that_takes_too_long_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_WATCH_S", 0.02)
    config = msgspec.structs.replace(QUICK, handler_timeout_s=0.05)
    async with running_station("alpha", tmp_path, config=config) as alpha:
        attempts: list[int] = []

        async def handle(message: Message, tx: Transaction) -> None:
            attempts.append(message.attempt)
            await asyncio.sleep(60)

        await alpha.mail.consume("orders", handle, retry=RetryPolicy(max_attempts=1))
        await alpha.mail.send("orders", b"", to="alpha")
        await until_dead(alpha.mail, 1)
        (dead,) = await alpha.mail.dead_letters.list()
        assert dead.detail == "TimeoutError: the handler took more than 0.05 s"
        assert attempts == [1]


async def test_pull_that_begins_when_the_node_stops_ends_too(alpha: Station) -> None:
    store, gate = alpha.mail.store, threading.Event()
    await store.write(lambda ledger: None)
    before = store.writer.commits
    # It is at the point of reading when everything else has been stopped.
    reading = asyncio.create_task(store.read(lambda database: gate.wait(DEADLINE_S)))
    pulling = asyncio.create_task(alpha.mail.pull("orders"))
    await eventually(lambda: store.writer.commits > before, "the pull has begun")
    stopping = asyncio.create_task(alpha.mail.stop())
    await eventually(lambda: "not open" in repr(store), "the store is being closed")
    gate.set()
    await asyncio.gather(reading, stopping)
    with pytest.raises(UsageError, match="not running"):
        await asyncio.wait_for(pulling, DEADLINE_S)
