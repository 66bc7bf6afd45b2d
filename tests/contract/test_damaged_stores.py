"""Files that were damaged while no process used them: noticed when a store is opened."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from postroad.core.errors import StoreCorruptedError
from postroad.durable import DurableQueues, Message, SqliteStore, StaticPeerDirectory, Transaction
from postroad.durable.store.tables.rows import add_checksum, strip_checksum
from postroad.net import MessagingService
from tests.contract.store_behaviour import bodies
from tests.support.deadlines import eventually
from tests.support.durable.nodes import OWN, PEER, QUEUE, opened, post

LOST = "has lost its last"


async def kill_after_posts(tmp_path: Path, count: int) -> Path:
    """What a process leaves that is killed after some commits."""
    (tmp_path / "left").mkdir()
    async with opened(SqliteStore(tmp_path / "store.db")) as store:
        for number in range(count):
            await post(store, PEER, b"%d" % number)
        for name in ("store.db", "store.db-wal", "store.db.node.lock"):
            shutil.copy(tmp_path / name, tmp_path / "left" / name)
    return tmp_path / "left" / "store.db"


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if it.levelno == logging.ERROR]


def flip_bit(log: Path) -> None:
    # Of the first page in it; SQLite takes nothing that comes after.
    data = bytearray(log.read_bytes())
    data[32 + 24 + 100] ^= 1
    log.write_bytes(data)


def cut(log: Path) -> None:
    log.write_bytes(log.read_bytes()[: 32 + 24 + 4096])


@pytest.mark.parametrize("damage", [flip_bit, cut, Path.unlink])
async def test_log_that_lost_commits_is_told_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    path = await kill_after_posts(tmp_path, 5)
    damage(path.with_name("store.db-wal"))
    async with opened(SqliteStore(path)) as store:
        assert len(await bodies(store)) < 5
        assert len(losses(caplog)) == 1 and LOST in losses(caplog)[0]
        await post(store, PEER, b"it goes on")
    caplog.clear()
    async with opened(SqliteStore(path)):
        assert losses(caplog) == [], "once is enough"


async def test_store_of_a_killed_process_has_lost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = await kill_after_posts(tmp_path, 5)
    async with opened(SqliteStore(path)) as store:
        assert len(await bodies(store)) == 5
    assert losses(caplog) == []


def flip(table: str, column: str) -> str:
    """Have one bit of the second row turned over."""
    return (
        f"UPDATE {table} SET {column} = CAST(replace({column}, x'{b'two'.hex()}',"
        f" x'{b'twp'.hex()}') AS BLOB) WHERE instr({column}, x'{b'two'.hex()}')"
    )


@pytest.mark.parametrize(
    "damage",
    [
        flip("postroad_inbox", "letters"),
        flip("postroad_aside", "letter"),
        "UPDATE postroad_inbox SET done = x'01' WHERE id = 2",
        "UPDATE postroad_inbox SET pending = 2 WHERE id = 2",
        "UPDATE postroad_inbox SET letters = x'c1' WHERE id = 2",
        "UPDATE postroad_inbox SET letters = x'00' WHERE id = 2",
    ],
)
async def test_damaged_message_is_not_handed_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    handled: list[bytes] = []

    async def handle(message: Message, tx: Transaction) -> None:
        handled.append(message.body)

    def mail() -> DurableQueues:
        return DurableQueues(
            service, SqliteStore(tmp_path / "store.db"), directory=StaticPeerDirectory({})
        )

    delay = 0.001 if "aside" in damage else None
    async with MessagingService("contract", OWN) as service:
        async with mail() as first:
            for word in (b"one", b"two", b"three"):
                await first.send(QUEUE, word, to=OWN, delay=delay)
        with closing(sqlite3.connect(tmp_path / "store.db")) as database:
            assert database.execute(damage).rowcount == 1
            database.commit()
        async with mail() as second:
            await second.consume(QUEUE, handle)
            await eventually(lambda: b"three" in handled, "the others are handled")
            await second.send(QUEUE, b"four", to=OWN)
            await eventually(lambda: b"four" in handled, "and so is what comes after")
            # It is kept for whoever wants to look at it.
            assert (await second.statistics()).queues[QUEUE].depth > 0
    assert handled == [b"one", b"three", b"four"]
    assert any("is damaged and not delivered" in text for text in losses(caplog))


def test_seal_tells_every_bit() -> None:
    sealed = add_checksum(b"some data")
    assert strip_checksum(sealed) == b"some data"
    assert strip_checksum(b"\x90 of an earlier version") == b"\x90 of an earlier version"
    for bit in range(8, len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreCorruptedError, match="checksum"):
            strip_checksum(bytes(damaged))
