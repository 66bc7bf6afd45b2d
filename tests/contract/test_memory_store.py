"""The disk in memory is as honest as a real one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from random import Random

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import (
    StoreUnavailableError,
)
from postroad.durable import MemoryDisk, MemoryStore
from postroad.durable.store.tables import queries as query
from tests.contract.store_behaviour import bodies, make_table, rows
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import OWN, PEER, once, opened, post, posting_of, raising


async def test_a_full_disk_in_memory() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk)) as store:
        await post(store, PEER, b"1")
        disk.is_full = True
        with pytest.raises(StoreUnavailableError, match="full"):
            await post(store, PEER, b"lost")
        assert await bodies(store) == [b"1"]
        disk.is_full = False
        await post(store, PEER, b"2")
        assert await bodies(store) == [b"1", b"2"]


async def test_a_read_only_disk_in_memory() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk)) as store:
        await post(store, PEER, b"1")
        disk.is_read_only = True
        try:
            with pytest.raises(StoreUnavailableError, match="read-only"):
                await post(store, PEER, b"lost")
            assert await bodies(store) == [b"1"]
            async with asyncio.timeout(1):
                with pytest.raises(StoreUnavailableError, match="read-only"):
                    await store.begin_transaction()
        finally:
            disk.is_read_only = False


async def test_a_slow_disk_in_memory() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk)) as store:
        disk.sync_s = 0.01
        before = store.writer.commits
        calls = [asyncio.create_task(post(store, PEER, b"%d" % number)) for number in range(50)]
        assert len(await asyncio.gather(*calls)) == 50
        assert store.writer.commits - before <= 3
        assert len(await bodies(store)) == 50


class Crash(BaseException):
    """The process dies here."""


async def crash(disk: MemoryDisk, point: str, *texts: bytes) -> None:
    """Post, and die at a fault point."""
    store = MemoryStore(disk)
    await store.open(OWN)
    with faults.arm_fault_point(point, once(raising(Crash()))):
        store.submit(posting_of(PEER, *texts))
        await asyncio.gather(store.writer._task, return_exceptions=True)
    store._shut_down()
    disk.crash()


async def test_a_crash_before_a_commit_leaves_all_of_it_or_nothing() -> None:
    outcomes = set()
    for seed in range(12):
        disk = MemoryDisk(Random(seed))
        await crash(disk, "durable.commit.before", b"1", b"2")
        async with opened(MemoryStore(disk)) as store:
            outcomes.add(tuple(await bodies(store)))
            await post(store, PEER, b"3")
            peer = await store.read(query.find_peer, PEER)
            assert peer is not None
            assert peer.last_seq == len(await bodies(store))
    assert outcomes == {(), (b"1", b"2")}


async def test_what_was_committed_survives_a_crash() -> None:
    for seed in range(4):
        disk = MemoryDisk(Random(seed))
        await crash(disk, "durable.commit.after", b"1", b"2")
        async with opened(MemoryStore(disk)) as store:
            assert await bodies(store) == [b"1", b"2"]


async def test_what_was_not_about_to_be_committed_is_gone_after_a_crash() -> None:
    for seed in range(8):
        disk = MemoryDisk(Random(seed))
        store = MemoryStore(disk)
        await store.open(OWN)
        await make_table(store)
        turn = await store.begin_transaction()
        await turn.execute("INSERT INTO mine VALUES (1)")
        store.writer._task.cancel()
        await asyncio.gather(store.writer._task, return_exceptions=True)
        store._shut_down()
        disk.crash()
        async with opened(MemoryStore(disk)) as again:
            assert await rows(again) == []


async def test_no_copy_is_made_in_the_middle_of_a_transaction() -> None:
    disk = MemoryDisk()
    async with opened(MemoryStore(disk)) as store:
        turn = await store.begin_transaction()
        await turn.execute("SELECT 1")
        with pytest.raises(StoreUnavailableError, match="another moment"):
            disk.backup()
        turn.finish(None)


def test_memory_store_when_several_threads_use_its_connection_never_locks_up() -> None:
    program = """
import threading
from postroad.durable.store.backends.memory import MemoryStoreConnection, MemoryDisk

database = MemoryStoreConnection(MemoryDisk())

def read(thread):
    for number in range(1000):
        # Each another one, which SQLite has to compile.
        database.execute(f"SELECT {thread}, {number} UNION SELECT 1, 2")

threads = [threading.Thread(target=read, args=[thread]) for thread in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    # In a process of its own: threads that wait for each other cannot be ended.
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S)
