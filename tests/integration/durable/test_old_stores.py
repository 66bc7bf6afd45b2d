"""Stores that earlier versions wrote are opened, and nothing in them is lost."""

import sqlite3
from pathlib import Path

import pytest

from postroad.durable import DurableQueuesConfig, Message, SqliteStore, Transaction
from postroad.durable.config import decode_config
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import running_station, until_empty, until_waiting

# Dumps of stores of the node alpha: written by version 0.1 with its first tables, and by a later
# one whose checksums and marks of commits are those of today.
STORES = Path(__file__).parent / "old_stores"
# The keys of the stored messages are older.
CONFIG = DurableQueuesConfig(idempotency_ttl_s=1e9)


def restore(schema: int, directory: Path) -> None:
    with sqlite3.connect(directory / "alpha.db") as database:
        database.executescript((STORES / f"schema_{schema}.sql").read_text())
    database.close()


@pytest.mark.parametrize("schema", [1, 3])
async def test_store_of_an_earlier_version_keeps_its_messages(schema: int, tmp_path: Path) -> None:
    restore(schema, tmp_path)
    received: list[tuple[bytes, str | None, str]] = []
    handled: list[tuple[bytes, int]] = []

    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path, beta, config=CONFIG) as alpha,
    ):
        queues = alpha.mail
        async with queues.transaction() as tx:
            assert await tx.execute("SELECT cents FROM bookings") == [(995,)]
        (dead,) = await queues.dead_letters.list()
        assert (dead.message.body, dead.reason, dead.failures) == (b"bad", "rejected", 1)
        pending = {
            pending.message.body: pending.failures
            for pending in await queues.admin.peek_pending("orders")
        }
        assert pending == {b"fails": 1, b"next": 0, b"plain": 0, b"urgent": 0, b"later": 0}
        statistics = await queues.statistics()
        assert (statistics.queues["held"].depth, statistics.queues["held"].is_paused) == (1, True)

        # Sent before: its key is known, so it is not sent again.
        again = await queues.send(
            "orders", b"out 0", to="beta", key="k", headers={"h": "0"}, idempotency_key="once 0"
        )
        assert again in [message.id for message in await queues.bridges.peek("beta")]
        alpha.meet(beta)
        await beta.mail.consume(
            "orders",
            lambda message, tx: received.append((message.body, message.key, message.headers["h"])),
        )
        await until_empty(queues, "beta")
        await eventually(lambda: len(received) == 3, "all messages to beta are handled")
        assert received == [(b"out %d" % number, "k", str(number)) for number in range(3)]

        def handle(message: Message, tx: Transaction) -> None:
            handled.append((message.body, message.attempt))

        await queues.consume("orders", handle)
        await eventually(lambda: len(handled) == 4, "all messages that are due are handled")
        assert {*handled} == {(b"fails", 2), (b"next", 1), (b"plain", 1), (b"urgent", 1)}
        bodies = [body for body, _ in handled]
        assert bodies.index(b"fails") < bodies.index(b"next")
        await queues.dead_letters.retry(dead.id)
        await eventually(lambda: handled[-1] == (b"bad", 1), "the dead letter is handled")
        await until_waiting(queues, "orders", 1)
        assert [message.body for message in await queues.admin.peek("orders")] == [b"later"]


def test_stored_configuration_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    restore(3, tmp_path)
    with sqlite3.connect(tmp_path / "alpha.db") as database:
        ((text,),) = database.execute("SELECT value FROM postroad_meta WHERE name = 'config'")
    database.close()
    config = decode_config(text)
    assert (config.batch_messages_max, config.handler_timeout_s) == (7, 123.0)
    assert config == DurableQueuesConfig(batch_messages_max=7, handler_timeout_s=123.0)


async def test_store_of_today_is_not_opened_as_an_older_one(tmp_path: Path) -> None:
    """The migration leaves its mark: a version that knows less must refuse the store."""
    restore(1, tmp_path)
    store = SqliteStore(tmp_path / "alpha.db")
    await store.open("alpha")
    await store.close()
    with sqlite3.connect(tmp_path / "alpha.db") as database:
        ((version,),) = database.execute("SELECT value FROM postroad_meta WHERE name = 'schema'")
    database.close()
    assert int(version) >= 3
