"""What only a store in a file can suffer: damage, a full disk, other programs."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroad.core.errors import (
    StoreCorrupt,
    StoreLocked,
    StoreUnavailable,
)
from postroad.durable import SqliteStore
from postroad.durable.store import queries as query
from tests.contract.store_behaviour import WAIT_S, bodies, make_table, open_both_at_once, rows
from tests.durable_nodes import OWN, PEER, opened, post, posting_of


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
    with pytest.raises(StoreCorrupt, match="damaged"):
        await SqliteStore(path).open(OWN)
    assert read(path) == content


async def test_a_damaged_file_is_refused(filled: Path) -> None:
    content = bytearray(read(filled))
    for page in range(4_096, len(content), 4_096):
        content[page : page + 64] = os.urandom(64)
    write(filled, content)
    with pytest.raises(StoreCorrupt, match=str(filled)):
        await SqliteStore(filled).open(OWN)


async def test_a_truncated_file_is_refused(filled: Path) -> None:
    os.truncate(filled, len(read(filled)) // 8_192 * 4_096)
    with pytest.raises(StoreCorrupt):
        await SqliteStore(filled).open(OWN)


async def test_a_refused_file_is_let_go(filled: Path) -> None:
    content = read(filled)
    write(filled, b"nonsense" * 1_000)
    with pytest.raises(StoreCorrupt):
        await SqliteStore(filled).open(OWN)
    write(filled, content)
    async with opened(SqliteStore(filled)) as store:
        assert len(await bodies(store)) == 50


async def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await SqliteStore(tmp_path / "file" / "store.db").open(OWN)
    (tmp_path / "store.db").mkdir()
    with pytest.raises(StoreUnavailable):
        await SqliteStore(tmp_path / "store.db").open(OWN)


async def test_the_lock_tells_who_has_it(path: Path) -> None:
    async with opened(SqliteStore(path)):
        with pytest.raises(StoreLocked, match=f"process {os.getpid()} as its node"):
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
            with pytest.raises(StoreUnavailable, match="cannot be used now"):
                await post(store, PEER, bytes(500_000))
            turn = await store.begin()
            await turn.execute("INSERT INTO mine VALUES (1)")
            posting = posting_of(PEER, bytes(500_000))
            turn.end(posting)
            with pytest.raises(StoreUnavailable):
                await posting.done
            assert await bodies(store) == [b"1"]
        await post(store, PEER, b"2")
        assert await rows(store) == []
    async with opened(SqliteStore(path)) as store:
        assert await bodies(store) == [b"1", b"2"]
        assert [page.first for page in await store.read(query.read_pages, 1, 0, 9)] == [1, 2]


async def test_a_copy_can_be_made_while_the_store_is_used(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    store = SqliteStore(path)
    async with opened(store):
        await post(store, PEER, b"1")
        turn = await store.begin()
        await turn.execute("CREATE TABLE mine (x BIGINT)")
        await store.backup(copy)
        turn.end(None)
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
        async with asyncio.timeout(WAIT_S):
            await posting


async def test_a_node_and_its_bridge_start_together_on_a_new_file(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.db"
        await open_both_at_once(SqliteStore(path), SqliteStore(path))
