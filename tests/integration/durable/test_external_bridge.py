"""The bridges of a node in a process of their own: killed, doubled, or left alone by their node."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import (
    CLUSTER,
    Recorder,
    Station,
    numbers_of,
    post_numbers,
    running_station,
    until_empty,
)
from tests.support.source_tree import ROOT


class BridgeProcess:
    """`postroad bridge run` for node alpha."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, directory: Path, alpha: Station, *options: str) -> BridgeProcess:
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "postroad", "bridge", "run"),
            *("--cluster", CLUSTER, "--node", "alpha", "--node-address", str(alpha.address)),
            *("--store", str(directory / "alpha.db"), *options),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def line(self) -> str:
        """What it says first; empty if it ends instead."""
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), DEADLINE_S)).decode()

    async def ends(self) -> str:
        """What it says in the end, when it ends by itself."""
        assert self._process.stderr is not None
        error = await asyncio.wait_for(self._process.stderr.read(), DEADLINE_S)
        assert await asyncio.wait_for(self._process.wait(), DEADLINE_S) != 0
        return error.decode()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        # The pipes' transports are closed by the loop only after this turn.
        self._process._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def bridge_of(alpha: Station, directory: Path, *options: str) -> AsyncIterator[BridgeProcess]:
    """A bridge process, killed at the end."""
    process = await BridgeProcess.start(directory, alpha, *options)
    try:
        yield process
    finally:
        await process.kill()


@asynccontextmanager
async def carrying(alpha: Station, directory: Path, *options: str) -> AsyncIterator[BridgeProcess]:
    """A bridge process that has begun."""
    async with bridge_of(alpha, directory, *options) as process:
        assert "Carrying the mail of alpha" in await process.line()
        yield process


async def test_killed_bridge_is_replaced_by_the_next(tmp_path: Path) -> None:
    """B6: a bridge that starts asks its node for everything."""
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path, beta, bridge=False) as alpha,
    ):
        recorder = await Recorder.at(beta)
        async with carrying(alpha, tmp_path) as process:
            await post_numbers(alpha, "beta", range(50))
            await recorder.until(50)
            await process.kill()
            await post_numbers(alpha, "beta", range(50, 100))
        async with carrying(alpha, tmp_path):
            await recorder.until(100)
            await post_numbers(alpha, "beta", range(100, 110))
            await recorder.until(110)
            assert numbers_of(recorder.bodies) == list(range(110))
            await until_empty(alpha.mail, "beta")


async def test_bridge_goes_on_when_its_node_comes_back(tmp_path: Path) -> None:
    """B7: a bridge whose node has died carries what is there, and serves the next one."""
    async with running_station("beta", tmp_path) as beta:
        recorder = await Recorder.at(beta)
        async with running_station("alpha", tmp_path, beta, bridge=False) as alpha:
            process = await BridgeProcess.start(tmp_path, alpha)
            assert "Carrying the mail of alpha" in await process.line()
            await post_numbers(alpha, "beta", range(10))
            await recorder.until(10)
        try:
            async with running_station(
                "alpha", tmp_path, beta, bridge=False, bind=alpha.address
            ) as again:
                await post_numbers(again, "beta", range(10, 20))
                await recorder.until(20)
                assert (await again.mail.bridges.status()).bridges[0].peer == "beta"
                await until_empty(again.mail, "beta")
        finally:
            await process.kill()
        assert numbers_of(recorder.bodies) == list(range(20))


async def test_second_bridge_is_refused(tmp_path: Path) -> None:
    """B9: of two bridges on one store the second one does not begin."""
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path, beta, bridge=False) as alpha,
        carrying(alpha, tmp_path),
        bridge_of(alpha, tmp_path) as second,
    ):
        assert "is used by process" in await second.ends()


async def test_node_with_bridges_of_its_own_refuses_a_bridge_process(tmp_path: Path) -> None:
    async with running_station("alpha", tmp_path) as alpha, bridge_of(alpha, tmp_path) as process:
        assert "is used by process" in await process.ends()


async def test_bridge_that_takes_over_ends_the_one_before(tmp_path: Path) -> None:
    """B9: the one that was first may send, but removes nothing, and ends when it notices."""
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path, beta, bridge=False) as alpha,
    ):
        recorder = await Recorder.at(beta)
        async with carrying(alpha, tmp_path) as first:
            await post_numbers(alpha, "beta", range(10))
            await recorder.until(10)
            async with carrying(alpha, tmp_path, "--take-over"):
                await post_numbers(alpha, "beta", range(10, 20))
                await recorder.until(20)
                await until_empty(alpha.mail, "beta")
                await first.kill()
        assert numbers_of(recorder.bodies) == list(range(20))


async def test_new_epoch_is_seen_by_a_bridge_process(tmp_path: Path) -> None:
    """The node begins it in the store, and the bridge knows numbers of the one before."""
    async with (
        running_station("beta", tmp_path) as beta,
        running_station("alpha", tmp_path, beta, bridge=False) as alpha,
    ):
        recorder = await Recorder.at(beta)
        async with carrying(alpha, tmp_path):
            await post_numbers(alpha, "beta", range(5))
            await until_empty(alpha.mail, "beta")
            await alpha.mail.bridges.start_epoch("beta")
            await post_numbers(alpha, "beta", range(5, 10))
            await recorder.until(10)
            await until_empty(alpha.mail, "beta")
        async with carrying(alpha, tmp_path):
            await post_numbers(alpha, "beta", range(10, 12))
            await recorder.until(12)
        assert numbers_of(recorder.bodies) == list(range(12))
        assert await alpha.mail.dead_letters.list() == []
