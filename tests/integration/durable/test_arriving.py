"""Messages that are handled while their own commit is under way, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import Reject, StoreUnavailableError
from postroad.durable import (
    DurableQueuesConfig,
    MemoryDisk,
    MemoryStore,
    Message,
    OutgoingMessage,
    RetryPolicy,
    Transaction,
)
from postroad.durable.bridges.receiver import WindowMutation
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.store import Store, writer
from postroad.durable.store.mutations import Mutation
from postroad.durable.store.savepoints import SavepointTransaction
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

from .arrivals import consume, held_arrival, introduce, until_settled

# A node that knows the sender tells of its mail before the commit has even begun.
KNOWN = pytest.mark.parametrize("is_known", [False, True])
FAILURES = pytest.mark.parametrize(
    "error", [StoreUnavailableError("away"), ZeroDivisionError()], ids=repr
)


class Bookkeeper:
    """A handler that writes a row for each message, and counts how often it ran."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.attempts: list[int] = []

    async def __call__(self, message: Message, tx: Transaction) -> None:
        self.attempts.append(message.attempt)
        self.begun.set()
        await tx.execute("INSERT INTO books VALUES (?)", (int(message.body),))


async def keep_books(station: Station) -> Bookkeeper:
    """Have a node write down what it gets."""
    bookkeeper = Bookkeeper()
    async with station.mail.transaction() as tx:
        await tx.execute("CREATE TABLE books (number INTEGER)")
    await consume(station, bookkeeper, retry=AT_ONCE)
    return bookkeeper


async def rows_of(station: Station) -> list[int]:
    async with station.mail.transaction() as tx:
        return [number for (number,) in await tx.execute("SELECT number FROM books ORDER BY 1")]


async def test_message_is_handled_before_its_commit_is_done(alpha: Station, beta: Station) -> None:
    recorder = Recorder()
    await consume(beta, recorder)
    with held_arrival() as commit:
        await alpha.mail.send("orders", b"tea", to="beta")
        assert await recorder.until(1) == [b"tea"]
        await commit.begun()
        assert await beta.mail.admin.peek("orders") == []
        # Its sender keeps it meanwhile.
        assert len(await alpha.mail.bridges.peek("beta")) == 1
    await until_settled(alpha, beta)
    assert recorder.bodies == [b"tea"]


async def test_message_of_a_known_sender_is_stored_and_done_in_one_commit(
    alpha: Station, beta: Station
) -> None:
    recorder = Recorder()
    await consume(beta, recorder)
    await introduce(alpha, beta)
    before = beta.mail.store.writer.commits
    await alpha.mail.send("orders", b"tea", to="beta")
    await until_settled(alpha, beta)
    assert recorder.bodies == [b"tea"]
    assert beta.mail.store.writer.commits == before + 1


async def test_handler_does_not_wait_for_a_slow_disk(tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with (
        running_station("beta", MemoryStore(disk)) as beta,
        running_station("alpha", tmp_path, beta) as alpha,
    ):
        is_committing: list[bool] = []

        def handle(message: Message, tx: Transaction) -> None:
            is_committing.append(disk.is_in_transaction)

        await consume(beta, handle)
        disk.sync_s = 0.2
        await alpha.mail.send("orders", b"tea", to="beta")
        await until_settled(alpha, beta)
        assert is_committing == [True]


@KNOWN
@FAILURES
async def test_sends_of_precommit_handler_are_sent_once_after_failed_commit(
    tmp_path: Path, error: Exception, is_known: bool
) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        bills, attempts = Recorder(), []
        await alpha.mail.consume("bills", bills)

        def handle(message: Message, tx: Transaction) -> None:
            attempts.append(message.attempt)
            tx.send("bills", message.body, to="alpha")

        await consume(beta, handle, retry=AT_ONCE)
        if is_known:
            await introduce(alpha, beta)
        with held_arrival() as commit:
            await alpha.mail.send("orders", b"tea", to="beta")
            await commit.begun()
            await eventually(lambda: attempts, "it was handled")
            commit.fail(error)
            await bills.until(1)
            await until_settled(alpha, beta)
        await until_empty(beta.mail, "alpha")
        await until_waiting(alpha.mail, "bills", 0)
        assert bills.bodies == [b"tea"]
        assert attempts == [1, 1]


@KNOWN
@FAILURES
async def test_precommit_handler_transaction_after_failed_commit(
    tmp_path: Path, error: Exception, is_known: bool
) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        bookkeeper = await keep_books(beta)
        if is_known:
            await introduce(alpha, beta)
        with held_arrival() as commit:
            await alpha.mail.send("orders", b"7", to="beta")
            await commit.begun()
            await bookkeeper.begun.wait()
            commit.fail(error)
            await until_settled(alpha, beta)
        assert await rows_of(beta) == [7]
        assert bookkeeper.attempts == [1, 1]
        assert await beta.mail.dead_letters.list() == []


class OneCommit:
    """Mail arrives and is handled with its statements in a single commit, which fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.failed: list[type[Mutation]] = []

    def __call__(self, units: Sequence[Mutation]) -> None:
        if not self.failed and any(isinstance(unit, WindowMutation) for unit in units):
            self.failed = [type(unit) for unit in units]
            raise self._error


async def next_turn(store: Store, turn: SavepointTransaction) -> SavepointTransaction:
    """End a turn when mail waits behind it; the turn after that mail, in the same commit."""
    await eventually(
        lambda: isinstance(store.writer.last_queued, WindowMutation), "mail waits for its commit"
    )
    begin = asyncio.create_task(store.begin_transaction())
    await asyncio.sleep(0)
    turn.finish(None)
    return await begin


@pytest.fixture
def long_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit goes on for as long as there are transactions."""
    monkeypatch.setattr(writer, "_GROUP_S", DEADLINE_S)


@pytest.mark.usefixtures("long_rounds")
@FAILURES
async def test_rows_of_a_message_not_arrived_are_undone(tmp_path: Path, error: Exception) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        bookkeeper = await keep_books(beta)
        store = beta.mail.store
        commit = OneCommit(error)
        with faults.arm_fault_point("durable.commit.before", commit):
            first = await store.begin_transaction()
            await alpha.mail.send("orders", b"7", to="beta")
            second = await next_turn(store, first)
            # The message is in the commit now, and its handler asks for the next transaction.
            await bookkeeper.begun.wait()
            await asyncio.sleep(0)
            second.finish(None)
            await until_settled(alpha, beta)
        assert commit.failed[:2] == [WindowMutation, DispositionMutation]
        assert await rows_of(beta) == [7]
        assert bookkeeper.attempts == [1, 1]


async def test_failure_of_a_message_not_arrived_is_not_counted(
    alpha: Station, beta: Station
) -> None:
    recorder = Recorder(failures=1)
    # Counted twice, it would be a dead letter.
    await consume(beta, recorder, retry=RetryPolicy(max_attempts=2, initial_delay_s=0.001))
    with held_arrival() as commit:
        await alpha.mail.send("orders", b"tea", to="beta", key="a")
        await commit.begun()
        await eventually(lambda: recorder.attempts, "it has failed")
        commit.fail(StoreUnavailableError("away"))
        await recorder.until(1)
        await until_settled(alpha, beta)
    assert recorder.attempts == [b"tea", b"tea"]
    assert [message.attempt for message in recorder.messages] == [1]
    assert await beta.mail.dead_letters.list() == []


async def test_failure_of_a_message_still_arriving_is_counted(
    alpha: Station, beta: Station
) -> None:
    recorder = Recorder(failures=1)
    await consume(beta, recorder, retry=AT_ONCE)
    with held_arrival() as commit:
        await post_numbers(alpha, "beta", range(3), key="a")
        await commit.begun()
        await eventually(lambda: recorder.attempts, "it has failed")
    assert numbers_of(await recorder.until(3)) == [0, 1, 2]
    await until_settled(alpha, beta)
    assert [message.attempt for message in recorder.messages] == [2, 1, 1]


async def test_message_that_is_rejected_and_did_not_arrive_is_one_dead_letter(
    alpha: Station, beta: Station
) -> None:
    recorder = Recorder(failures=2, error=Reject)
    await consume(beta, recorder)
    with held_arrival() as commit:
        await alpha.mail.send("orders", b"tea", to="beta")
        await commit.begun()
        await eventually(lambda: recorder.attempts, "it was rejected")
        commit.fail(StoreUnavailableError("away"))
        await until_dead(beta.mail, 1)
        await until_settled(alpha, beta)
    (dead,) = await beta.mail.dead_letters.list()
    assert (dead.reason, dead.failures, dead.message.body) == ("rejected", 1, b"tea")
    assert recorder.messages == []


async def test_more_arrives_in_one_commit_than_is_kept_in_memory(tmp_path: Path) -> None:
    pages = DurableQueuesConfig(batch_messages_max=2)
    narrow = msgspec.structs.replace(QUICK, prefetch_messages=4)
    handled: list[tuple[str | None, int]] = []
    gate = asyncio.Event()

    async def handle(message: Message, tx: Transaction) -> None:
        handled.append((message.key, int(message.body)))
        await gate.wait()

    async with (
        running_station("alpha", tmp_path, config=pages) as alpha,
        running_station("beta", tmp_path, alpha, config=narrow) as beta,
    ):
        await consume(beta, handle, concurrency=2)
        for first in range(0, 60, 3):
            for number in range(first, first + 3):
                await post_numbers(alpha, "beta", [number], key=f"key {number % 3}")
        with held_arrival() as commit:
            alpha.meet(beta)
            await commit.begun()
            # The first pages are being handled, and there is no room for the others.
            await eventually(lambda: len(handled) == 2, "two are being handled")
            commit.go_on()
        await until_empty(alpha.mail, "beta")
        gate.set()
        await until_waiting(beta.mail, "orders", 0)
    assert len(handled) == 60
    for key in range(3):
        numbers = [number for name, number in handled if name == f"key {key}"]
        assert numbers == list(range(key, 60, 3))


@pytest.mark.usefixtures("long_rounds")
async def test_precommit_messages_do_not_overtake_batches_without_capacity(tmp_path: Path) -> None:
    pages = DurableQueuesConfig(batch_messages_max=1)
    narrow = msgspec.structs.replace(QUICK, prefetch_messages=2)
    async with (
        running_station("beta", tmp_path, config=narrow) as beta,
        running_station("alpha", tmp_path, beta, config=pages) as alpha,
    ):
        recorder, store = Recorder(), beta.mail.store
        await consume(beta, recorder)
        turn = await store.begin_transaction()
        drafts = [
            OutgoingMessage(to="beta", queue="orders", body=b"%d" % n, key="a") for n in range(4)
        ]
        await alpha.mail.send_many(drafts)
        turn = await next_turn(store, turn)
        # There was room for two of them; when they are handled, there is room again.
        await recorder.until(2)
        await alpha.mail.send("orders", b"4", to="beta", key="a")
        turn = await next_turn(store, turn)
        turn.finish(None)
        assert numbers_of(await recorder.until(5)) == [0, 1, 2, 3, 4]
        await until_settled(alpha, beta)
