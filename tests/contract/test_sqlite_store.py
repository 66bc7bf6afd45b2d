"""What only a store in a file can suffer: damage, a full disk, other programs."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroad.core.errors import (
    StoreCorruptedError,
    StoreLockedError,
    StoreUnavailableError,
)
from postroad.durable import DurableQueuesConfig, SqliteStore, Store
from postroad.durable.store.backends import sqlite
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.backends.sqlite import SqliteStoreConnection
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.net import owned_files
from tests.contract.store_behaviour import bodies, make_table, open_both_at_once, rows
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import OWN, PEER, opened, post, posting_of


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, content: bytes | bytearray) -> None:
    path.write_bytes(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def filled(path: Path) -> Path:
    """A file with mail in it."""
    async with opened(SqliteStore(path)) as store:
        for number in range(50):
            await post(store, PEER, b"%d" % number * 1_000)
    return path


@pytest.mark.parametrize("content", [b"no database" * 500, b"\0" * 8_192], ids=["text", "zeros"])
async def test_a_file_that_is_no_database_is_refused(path: Path, content: bytes) -> None:
    write(path, content)
    with pytest.raises(StoreCorruptedError, match="damaged"):
        await SqliteStore(path).open(OWN)
    assert read(path) == content


async def test_a_damaged_file_is_refused(filled: Path) -> None:
    content = bytearray(read(filled))
    for page in range(4_096, len(content), 4_096):
        content[page : page + 64] = os.urandom(64)
    write(filled, content)
    with pytest.raises(StoreCorruptedError, match=str(filled)):
        await SqliteStore(filled).open(OWN)


async def test_a_truncated_file_is_refused(filled: Path) -> None:
    os.truncate(filled, len(read(filled)) // 8_192 * 4_096)
    with pytest.raises(StoreCorruptedError):
        await SqliteStore(filled).open(OWN)


async def test_a_refused_file_is_let_go(filled: Path) -> None:
    content = read(filled)
    write(filled, b"nonsense" * 1_000)
    with pytest.raises(StoreCorruptedError):
        await SqliteStore(filled).open(OWN)
    write(filled, content)
    async with opened(SqliteStore(filled)) as store:
        assert len(await bodies(store)) == 50


async def test_store_whose_last_reader_closes_as_it_is_opened_is_opened(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = filled.with_name(filled.name + "-shm")
    write(beside, b"")

    def check_after_the_reader(path: Path) -> None:
        if path == beside:
            beside.unlink()
        owned_files.check_file(path)

    monkeypatch.setattr(sqlite, "check_file", check_after_the_reader)
    async with opened(SqliteStore(filled)) as store:
        assert len(await bodies(store)) == 50


async def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await SqliteStore(tmp_path / "file" / "store.db").open(OWN)
    (tmp_path / "store.db").mkdir()
    with pytest.raises(StoreUnavailableError):
        await SqliteStore(tmp_path / "store.db").open(OWN)


async def test_the_lock_tells_who_has_it(path: Path) -> None:
    async with opened(SqliteStore(path)):
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()} as its node"):
            await SqliteStore(path).open(OWN)


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Nothing this process writes becomes larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_leaves_everything_as_it_was(path: Path) -> None:
    async with opened(SqliteStore(path)) as store:
        await post(store, PEER, b"1")
        await make_table(store)
        with files_limited_to(400_000):
            with pytest.raises(StoreUnavailableError, match="cannot be used now"):
                await post(store, PEER, bytes(500_000))
            turn = await store.begin_transaction()
            await turn.execute("INSERT INTO mine VALUES (1)")
            posting = posting_of(PEER, bytes(500_000))
            turn.finish(posting)
            with pytest.raises(StoreUnavailableError):
                await posting.done
            assert await bodies(store) == [b"1"]
        await post(store, PEER, b"2")
        assert await rows(store) == []
    async with opened(SqliteStore(path)) as store:
        assert await bodies(store) == [b"1", b"2"]
        assert [page.first for page in await store.read(query.read_outbox_batches, 1, 0, 9)] == [
            1,
            2,
        ]


async def test_a_copy_can_be_made_while_the_store_is_used(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    store = SqliteStore(path)
    async with opened(store):
        await post(store, PEER, b"1")
        turn = await store.begin_transaction()
        await turn.execute("CREATE TABLE mine (x BIGINT)")
        await store.backup(copy)
        turn.finish(None)
        await post(store, PEER, b"2")
    async with opened(SqliteStore(copy)) as copied:
        assert copied.id == store.id
        assert await bodies(copied) == [b"1"]


async def test_two_processes_write_one_file_in_turns(path: Path) -> None:
    async with (
        opened(SqliteStore(path)) as node,
        opened(SqliteStore(path), role="bridge") as bridge,
    ):
        writes = (
            store.write(lambda ledger: ledger.outbox.purge(PEER))
            for _ in range(20)
            for store in (node, bridge)
        )
        await asyncio.gather(post(node, PEER, b"1"), *writes)
        assert node.id == bridge.id
        assert await bodies(bridge) == await bodies(node)


async def test_a_statement_of_another_program_is_waited_for(path: Path) -> None:
    async with opened(SqliteStore(path)) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        posting = asyncio.create_task(post(store, PEER, b"1"))
        await asyncio.wait((posting,), timeout=0.1)
        assert not posting.done()
        other.execute("ROLLBACK")
        other.close()
        async with asyncio.timeout(DEADLINE_S):
            await posting


async def test_a_node_and_its_bridge_start_together_on_a_new_file(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.db"
        await open_both_at_once(SqliteStore(path), SqliteStore(path))


# The log, which is written in its whole length when the store is opened.

LOG_BYTES = 4 * 1024 * 1024
LOG_HEADER, FRAME = 32, 24 + 4_096


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def leave_behind(path: Path, directory: Path) -> Path:
    """The files of a store as a process leaves them that is killed now."""
    copy = directory / "left.db"
    shutil.copy(path, copy)
    shutil.copy(log_of(path), log_of(copy))
    return copy


async def test_the_log_is_long_from_the_start(path: Path) -> None:
    async with opened(SqliteStore(path)) as store:
        assert log_of(path).stat().st_size == LOG_BYTES
        await post(store, PEER, b"1")
        assert log_of(path).stat().st_size == LOG_BYTES
    async with opened(SqliteStore(path)) as store:
        assert log_of(path).stat().st_size == LOG_BYTES
        assert await bodies(store) == [b"1"]


async def test_what_a_killed_process_left_in_the_log_is_there(path: Path, tmp_path: Path) -> None:
    async with opened(SqliteStore(path)) as store:
        await post(store, PEER, b"1")
        await post(store, PEER, b"2")
        left = leave_behind(path, tmp_path)
    async with opened(SqliteStore(left)) as store:
        assert await bodies(store) == [b"1", b"2"]
        await post(store, PEER, b"3")
    async with opened(SqliteStore(left)) as store:
        assert await bodies(store) == [b"1", b"2", b"3"]


async def test_a_short_log_with_something_in_it_is_made_longer(path: Path, tmp_path: Path) -> None:
    async with opened(SqliteStore(path)) as store:
        await post(store, PEER, b"1")
        left = leave_behind(path, tmp_path)
    log = log_of(left)
    used = len(read(log).rstrip(b"\0")) - LOG_HEADER
    length = LOG_HEADER + -(-used // FRAME) * FRAME
    assert LOG_HEADER < length < LOG_BYTES
    os.truncate(log, length)
    async with opened(SqliteStore(left)) as store:
        assert log.stat().st_size == LOG_BYTES
        assert await bodies(store) == [b"1"]


async def test_a_log_that_cannot_be_made_longer_stays_short(path: Path) -> None:
    with files_limited_to(400_000):
        async with opened(SqliteStore(path)) as store:
            await post(store, PEER, b"1")
            assert await bodies(store) == [b"1"]


# A long outbox.


def count_steps(database: StoreConnection, function: Callable[..., object], *args: object) -> int:
    """About how many steps SQLite takes for something."""
    assert isinstance(database, SqliteStoreConnection)
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    database._connection.set_progress_handler(step, 10)
    try:
        function(database, *args)
    finally:
        database._connection.set_progress_handler(None, 0)
    return steps


async def cost_of_a_window(store: Store) -> int:
    """Steps to remove the first pages that wait for a peer, and to find the last ones."""
    peer = await store.read(query.find_peer, PEER)
    assert peer is not None
    number = peer.acked_seq + 10
    _, chain = await store.read(query.peer_and_chain, PEER, number)
    assert chain is not None

    def settle(ledger: StoreTables) -> int:
        def act(database: StoreConnection) -> None:
            ledger.outbox.ack(PEER, 1, number, chain, (), ledger.now_ms)

        return count_steps(ledger.database, act)

    steps = await store.write(settle)
    steps += await store.read(
        count_steps, query.read_outbox_batches_of_epoch, peer.id, peer.last_seq - 10, 5
    )
    steps += await store.read(count_steps, query.peer_and_chain, PEER, peer.last_seq - 10)
    return steps


async def test_a_long_outbox_costs_no_more_than_a_short_one(path: Path) -> None:
    async with opened(SqliteStore(path), config=DurableQueuesConfig(batch_messages_max=1)) as store:
        await post(store, PEER, *(b"%d" % number for number in range(50)))
        short = await cost_of_a_window(store)
        await post(store, PEER, *(b"%d" % number for number in range(3_000)))
        assert await cost_of_a_window(store) < 2 * short


async def test_the_log_is_not_made_longer_over_what_another_process_wrote(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_late, goes_on, write_at_once = threading.Event(), threading.Event(), os.pwrite

    def write_late(file: int, data: bytes, offset: int) -> int:
        if len(data) > FRAME and not is_late.is_set():
            is_late.set()
            # No longer: whoever waits for this one to be done must not wait in vain.
            goes_on.wait(0.5)
        return write_at_once(file, data, offset)

    monkeypatch.setattr(os, "pwrite", write_late)
    bridge = SqliteStore(path)
    opening = asyncio.create_task(bridge.open(OWN, role="bridge"))
    await asyncio.to_thread(is_late.wait, DEADLINE_S)
    async with opened(SqliteStore(path)) as node:
        await post(node, PEER, b"1")
        goes_on.set()
        await opening
        await post(node, PEER, b"2")
        await bridge.close()
    async with opened(SqliteStore(path)) as node:
        assert await bodies(node) == [b"1", b"2"]
