"""Disks that are full, read-only or somebody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroad.core.errors import StoreLockedError, StoreMismatchError, StoreUnavailableError
from postroad.durable import MemoryDisk, MemoryStore
from tests.support.durable.mail_pairs import (
    Recorder,
    numbers_of,
    post_numbers,
    running_station,
    until_waiting,
)
from tests.support.durable.mail_processes import all_quiet, mail_nodes


async def test_sender_with_a_full_disk_refuses_until_there_is_room(tmp_path: Path) -> None:
    """B14: what was not kept was not posted, and whoever posted it knows."""
    async with mail_nodes(tmp_path, "sender", "receiver") as (sender, receiver):
        receiver.meet(sender)
        sender.meet(receiver)
        assert await sender.post(receiver, 0, 20)
        await all_quiet(sender, receiver)
        await sender.limit_disk(4_096)
        sender.tell("post", receiver.name, "work", 20, 20)
        assert await sender.line() == "refused"
        await sender.limit_disk(0)
        assert await sender.post(receiver, 20, 20)
        await all_quiet(sender, receiver)
        assert sorted(receiver.rows_from(sender)) == list(range(40))
        assert sorted(sender.rows_from(receiver, "receipts")) == list(range(40))


async def test_receiver_with_a_full_disk_takes_nothing_until_there_is_room(tmp_path: Path) -> None:
    """B14: what it cannot keep stays where it is."""
    async with mail_nodes(tmp_path, "sender", "receiver") as (sender, receiver):
        receiver.meet(sender)
        sender.meet(receiver)
        assert await sender.post(receiver, 0, 20)
        await all_quiet(sender, receiver)
        await receiver.limit_disk(4_096)
        assert await sender.post(receiver, 20, 20)
        # Some attempts fail meanwhile; the time of them is what is tested.
        await asyncio.sleep(0.3)
        assert sender.waiting == 20
        assert sorted(receiver.rows_from(sender)) == list(range(20))
        await receiver.limit_disk(0)
        await all_quiet(sender, receiver)
        assert sorted(receiver.rows_from(sender)) == list(range(40))
        assert sorted(sender.rows_from(receiver, "receipts")) == list(range(40))
        assert sender.dead == receiver.dead == []


@pytest.mark.parametrize("trouble", ["is_full", "is_read_only"])
async def test_handled_messages_that_cannot_be_committed_come_again(trouble: str) -> None:
    disk = MemoryDisk()
    async with running_station("alpha", MemoryStore(disk)) as alpha:
        await post_numbers(alpha, "alpha", range(10))
        recorder = Recorder()
        setattr(disk, trouble, True)
        with pytest.raises(StoreUnavailableError):
            await alpha.mail.send("orders", b"11", to="alpha")
        setattr(disk, trouble, False)
        await alpha.mail.consume("orders", recorder)
        await recorder.until(1)
        setattr(disk, trouble, True)
        await recorder.until(10)
        setattr(disk, trouble, False)
        await until_waiting(alpha.mail, "orders", 0)
        assert sorted(set(numbers_of(recorder.bodies))) == list(range(10))


async def test_transaction_on_a_read_only_disk_is_refused() -> None:
    disk = MemoryDisk()
    async with running_station("alpha", MemoryStore(disk)) as alpha:
        disk.is_read_only = True

        async def create() -> None:
            async with alpha.mail.transaction() as tx:
                await tx.execute("CREATE TABLE books (number INTEGER)")

        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(create(), 5)
        disk.is_read_only = False
        await create()


async def test_uncreatable_store_is_reported_at_start() -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        async with running_station("alpha", Path("/proc/self")):
            raise AssertionError("it began")


async def test_store_in_use_or_of_another_node_is_refused(tmp_path: Path) -> None:
    async with running_station("alpha", tmp_path):
        with pytest.raises(StoreLockedError, match="stop that one first"):
            async with running_station("alpha", tmp_path):
                raise AssertionError("it began")
    (tmp_path / "alpha.db").rename(tmp_path / "beta.db")
    with pytest.raises(StoreMismatchError, match="belongs to node 'alpha'"):
        async with running_station("beta", tmp_path):
            raise AssertionError("it began")
