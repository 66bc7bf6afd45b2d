"""Starting and stopping mail, when that is cancelled or cannot be done."""

import asyncio
import os
from pathlib import Path

import pytest

from postroad.core.errors import PostroadError
from postroad.durable import DurableQueues, Message, SqliteStore, StaticPeerDirectory, Transaction
from postroad.net import MessagingService
from tests.support.durable.mail_pairs import CLUSTER, LIMITS, QUICK, Recorder, running_station


async def test_second_durable_queues_of_service_is_rejected(tmp_path: Path) -> None:
    async with running_station("alpha", tmp_path) as alpha:
        store = SqliteStore(tmp_path / "second.db")
        second = DurableQueues(alpha.service, store, directory=alpha.directory, config=QUICK)
        with pytest.raises(PostroadError, match="alpha"):
            await second.start()
        assert not store.is_open
        async with running_station("beta", tmp_path, alpha) as beta:
            recorder = await Recorder.at(alpha)
            await beta.mail.send("orders", b"tea", to="alpha")
            assert await recorder.until(1) == [b"tea"]


async def test_a_stop_that_is_cancelled_goes_on(tmp_path: Path) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def handle(_message: Message, _tx: Transaction) -> None:
        begun.set()
        await release.wait()

    store = SqliteStore(tmp_path / "alpha.db")
    async with MessagingService(CLUSTER, "alpha", limits=LIMITS) as service:
        mail = DurableQueues(service, store, directory=StaticPeerDirectory({}), config=QUICK)
        await mail.start()
        await mail.consume("orders", handle)
        await mail.send("orders", b"tea", to="alpha")
        await begun.wait()
        stopping = asyncio.create_task(mail.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()
        release.set()
        await mail.stop()
        assert not store.is_open


def modes_for_others(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o077 for path in directory.iterdir()}


async def test_store_file_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with running_station("alpha", tmp_path) as alpha:
            await alpha.mail.send("orders", b"tea", to="alpha")
            assert isinstance(alpha.mail.store, SqliteStore)
            await alpha.mail.store.backup(tmp_path / "copy.db")
            modes = modes_for_others(tmp_path)
    finally:
        os.umask(before)
    assert {"alpha.db", "alpha.db-wal", "copy.db"} <= modes.keys()
    assert modes == dict.fromkeys(modes, 0)
