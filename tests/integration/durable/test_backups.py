"""Stores that were restored from a backup: noticed by both sides, decided by a person."""

from __future__ import annotations

import shutil
from pathlib import Path

from postroad.durable import SqliteStore
from tests.support.deadlines import eventually
from tests.support.durable.mail_pairs import (
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    running_pair,
    running_station,
    until_empty,
    until_waiting,
)


async def back_up(station: Station, directory: Path) -> None:
    assert isinstance(station.mail.store, SqliteStore)
    await station.mail.store.backup(directory / f"{station.name}.backup")


def restore(name: str, directory: Path) -> None:
    """Put the backup of a node in the place of its store, as a person would."""
    for path in directory.glob(f"{name}.db*"):
        path.unlink()
    shutil.copy(directory / f"{name}.backup", directory / f"{name}.db")


async def until_refused(alpha: Station, *words: str) -> None:
    """The bridge to beta has stopped, and says why."""

    async def is_refused() -> bool:
        bridges = (await alpha.mail.bridges.status()).bridges
        return any(
            bridge.state == "mismatch"
            and bridge.last_error is not None
            and all(w in bridge.last_error for w in words)
            for bridge in bridges
        )

    await eventually(is_refused, f"the bridge says {words}")


async def test_sender_that_was_restored_sends_nothing_under_old_numbers(tmp_path: Path) -> None:
    """R12: its numbers were used for other messages since the backup."""
    async with running_pair(tmp_path) as (alpha, beta):
        recorder = await Recorder.at(beta)
        await post_numbers(alpha, "beta", range(5))
        await until_empty(alpha.mail, "beta")
        await back_up(alpha, tmp_path)
        await post_numbers(alpha, "beta", range(5, 10))
        await recorder.until(10)
    restore("alpha", tmp_path)
    async with running_pair(tmp_path) as (alpha, beta):
        recorder = await Recorder.at(beta)
        await post_numbers(alpha, "beta", range(100, 103))
        await until_refused(alpha, "this node's store is an old copy", "start a new epoch")
        assert recorder.bodies == []
        assert await alpha.mail.bridges.start_epoch("beta") == 3
        assert numbers_of(await recorder.until(3)) == [100, 101, 102]
        await until_empty(alpha.mail, "beta")
        assert (await alpha.mail.statistics()).peers["beta"].epoch == 2


async def test_sender_that_was_restored_and_went_on_is_noticed(tmp_path: Path) -> None:
    """R12: as many messages as the receiver has, but not the same ones."""
    async with running_pair(tmp_path) as (alpha, beta):
        await post_numbers(alpha, "beta", range(5))
        await until_empty(alpha.mail, "beta")
        await back_up(alpha, tmp_path)
        await post_numbers(alpha, "beta", range(5, 8))
        await until_empty(alpha.mail, "beta")
    restore("alpha", tmp_path)
    async with running_pair(tmp_path) as (alpha, beta):
        alpha.directory.set("beta", None)
        await post_numbers(alpha, "beta", range(100, 106))
        alpha.meet(beta)
        await until_refused(alpha, "is not the one that was delivered there")
        assert len(await beta.mail.admin.peek("orders")) == 8


async def test_receiver_that_was_restored_is_noticed(tmp_path: Path) -> None:
    """R12: it has acknowledged what it does not remember."""
    async with running_pair(tmp_path) as (alpha, beta):
        await post_numbers(alpha, "beta", range(5))
        await until_empty(alpha.mail, "beta")
        await back_up(beta, tmp_path)
        await post_numbers(alpha, "beta", range(5, 10))
        await until_empty(alpha.mail, "beta")
    restore("beta", tmp_path)
    async with running_pair(tmp_path) as (alpha, beta):
        await post_numbers(alpha, "beta", range(10, 12))
        await until_refused(alpha, "has acknowledged 10 messages and remembers 5")
        assert len(await beta.mail.admin.peek("orders")) == 5
        await alpha.mail.bridges.start_epoch("beta")
        await until_waiting(beta.mail, "orders", 7)
        numbers = numbers_of(message.body for message in await beta.mail.admin.peek("orders"))
        assert numbers == [0, 1, 2, 3, 4, 10, 11]


async def test_backup_of_both_taken_together_goes_on(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (alpha, beta):
        await post_numbers(alpha, "beta", range(5))
        await until_empty(alpha.mail, "beta")
        await back_up(beta, tmp_path)
        await back_up(alpha, tmp_path)
        await post_numbers(alpha, "beta", range(5, 10))
        await until_empty(alpha.mail, "beta")
    for name in ("alpha", "beta"):
        restore(name, tmp_path)
    async with running_pair(tmp_path) as (alpha, beta):
        await post_numbers(alpha, "beta", range(20, 22))
        await until_waiting(beta.mail, "orders", 7)


async def test_sender_restored_to_before_other_managers_concerns_one_peer(tmp_path: Path) -> None:
    """R12: a peer that goes on running remembers that there were later bridge managers."""
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("gamma", tmp_path) as gamma,
    ):
        for number in range(4):
            async with running_station("alpha", tmp_path, beta) as alpha:
                if number == 1:
                    await back_up(alpha, tmp_path)
                await post_numbers(alpha, "beta", [number])
                await until_empty(alpha.mail, "beta")
        restore("alpha", tmp_path)
        async with running_station("alpha", tmp_path, beta, gamma) as alpha:
            await alpha.mail.send("orders", b"lost", to="beta")
            await alpha.mail.send("orders", b"10", to="gamma")
            await until_refused(alpha, "a later bridge manager", "start a new epoch")
            await until_waiting(gamma.mail, "orders", 1)
            await alpha.mail.bridges.purge("beta")
            await alpha.mail.bridges.start_epoch("beta")
            await alpha.mail.send("orders", b"20", to="beta")
            await until_empty(alpha.mail, "beta", "gamma")
        numbers = numbers_of(message.body for message in await beta.mail.admin.peek("orders"))
        assert numbers == [0, 1, 2, 3, 20]
