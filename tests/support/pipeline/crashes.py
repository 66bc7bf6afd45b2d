"""A job whose process dies at any commit of its account, or at all of them.

Tests of what outlives such processes inherit `CrashBehaviour`.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from random import Random

import pytest

from postroad.core import fault_points as faults
from postroad.durable import MemoryDisk
from postroad.pipeline import LocalRunner
from tests.support.deadlines import DEADLINE_S
from tests.support.tiers import sample

POISON = 5
"""A number that nobody can do."""
COMMITS_OF_A_BATCH = 6
"""So many, with those to open and to deliver: with the last, something was done."""


class Crash(BaseException):
    """Not even an exception: the process is gone."""


class RollsBack(Random):
    """What was not committed when the process died is not there."""

    def random(self) -> float:
        return 1.0


class Killer:
    """A fault point that ends the process when it was reached so often."""

    def __init__(self, disk: MemoryDisk, at: int | None) -> None:
        self._disk = disk
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._crashed = asyncio.Event()
        self.count = 0

    def __call__(self, units: object) -> None:
        """Be the fault point, in the thread of the store."""
        self.count += 1
        if self._at is not None and self.count >= self._at:
            self._disk.crash()
            self._loop.call_soon_threadsafe(self._crashed.set)
            raise Crash

    @property
    def has_struck(self) -> bool:
        return self._crashed.is_set()

    async def run(self, runner: LocalRunner, point: str) -> None:
        """Run until everything is done, or until the process dies; nothing of it goes on then."""
        with faults.arm_fault_point(f"durable.commit.{point}", self):
            running = asyncio.create_task(runner.run())
            dying = asyncio.create_task(self._crashed.wait())
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.wait((running, dying), return_when=asyncio.FIRST_COMPLETED)
                is_dead = dying.done()
                if is_dead:
                    running.cancel()
                dying.cancel()
                try:
                    await running
                except (Crash, asyncio.CancelledError):
                    assert is_dead

    def closing(self) -> AbstractContextManager[object]:
        """Around what fails in a process that is dead."""
        return pytest.raises(Crash) if self.has_struck else nullcontext()


class Mortal:
    """A job, and all that outlives the processes that run it."""

    async def live(self, point: str, at: int | None = None) -> Killer:
        """One process: until everything is done, or until it dies at its `at`-th commit."""
        raise AssertionError("each has its own")

    async def check(self) -> None:
        """Everything was done once, and what cannot be done is dead."""
        raise AssertionError("each has its own")


class CrashBehaviour:
    """Nothing is lost or doubled, whenever a process dies."""

    async def make(self) -> Mortal:
        raise AssertionError("each has its own")

    async def test_job_without_crashes_does_everything_once(self) -> None:
        mortal = await self.make()
        assert (await mortal.live("before")).count > COMMITS_OF_A_BATCH
        await mortal.check()

    @pytest.mark.parametrize("point", ["before", "after"])
    async def test_process_that_dies_at_any_one_commit_loses_and_doubles_nothing(
        self, point: str
    ) -> None:
        commits = (await (await self.make()).live(point)).count
        for at in range(1, commits + 1):
            mortal = await self.make()
            assert (await mortal.live(point, at)).has_struck, f"commit {at} of {commits}"
            await mortal.live(point)
            await mortal.check()

    @pytest.mark.parametrize("point", ["before", "after"])
    async def test_process_that_dies_again_and_again_loses_and_doubles_nothing(
        self, point: str
    ) -> None:
        for at in range(COMMITS_OF_A_BATCH, COMMITS_OF_A_BATCH + 3):
            mortal, lives = await self.make(), 1
            while (await mortal.live(point, at)).has_struck:
                lives += 1
                assert lives < 50, "it gets nowhere"
            assert lives > 2
            await mortal.check()

    @pytest.mark.parametrize("number", sample(range(10), 2))
    async def test_processes_that_die_at_random_commits_lose_and_double_nothing(
        self, number: int, seed: int
    ) -> None:
        chance, mortal = Random(seed), await self.make()
        for _ in range(10):
            await mortal.live(chance.choice(("before", "after")), chance.randrange(1, 12))
        await mortal.live("after")
        await mortal.check()
