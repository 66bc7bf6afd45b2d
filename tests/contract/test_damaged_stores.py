"""Files that were damaged while no process used them: noticed when a store is opened."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad.durable import SqliteStore
from tests.contract.store_behaviour import bodies
from tests.support.durable.nodes import PEER, opened, post

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
