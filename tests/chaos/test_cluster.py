"""Members in processes of their own, killed and paused, with the configuration users get."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.support.deadlines import DEADLINE_S
from tests.support.net.processes import end, start_module
from tests.support.tiers import by_tier

NAMES = [f"node-{number}" for number in range(by_tier(test=6, nightly=8))]


class Change(NamedTuple):
    """A change as a process told it."""

    time: float
    kind: str
    name: str
    state: str


class Process:
    """A member, and what it has told so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self.address = ""
        self.changes: list[Change] = []
        # Set at each line, for whoever waits.
        self._stirred = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, name: str, *seeds: str) -> Process:
        return cls(name, await start_module("tests.chaos.cluster_node", name, *seeds))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if self.address:
                self.changes.append(Change(*json.loads(line)))
            else:
                self.address = line.decode().strip()
            self._stirred.set()

    async def until(self, condition: Callable[[Process], object], what: str) -> None:
        """Return as soon as the condition holds of it; looked at after each line."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition(self):
                    self._stirred.clear()
                    await self._stirred.wait()
        except TimeoutError:
            raise AssertionError(f"{self.name} did not see that {what}: {self.changes}") from None

    @property
    def names(self) -> set[str]:
        """The other members, as far as it told."""
        names: set[str] = set()
        for change in self.changes:
            if change.kind == "added":
                names.add(change.name)
            elif change.kind == "removed":
                names.remove(change.name)
        return names

    @property
    def removed(self) -> dict[str, str]:
        """The state of each that was removed; nobody may be removed twice."""
        removals = [
            (change.name, change.state) for change in self.changes if change.kind == "removed"
        ]
        assert len(dict(removals)) == len(removals), removals
        return dict(removals)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        await end(self._process)
        await self._reading


@asynccontextmanager
async def running_processes() -> AsyncIterator[list[Process]]:
    """Processes that all know each other; killed at the end."""
    processes: list[Process] = []
    try:
        first = await Process.start(NAMES[0])
        processes.append(first)
        await first.until(lambda status: status.address, "it has begun")
        starts = (Process.start(name, first.address) for name in NAMES[1:])
        processes += await asyncio.gather(*starts)
        await all_agree(processes)
        yield processes
    finally:
        for process in processes:
            await process.kill()


async def all_agree(processes: list[Process]) -> None:
    """Each of them knows all the others, and nobody else."""
    names = {process.name for process in processes}
    for process in processes:
        await process.until(
            lambda status: {*status.names, status.name} == names, f"the members are {names}"
        )


async def test_members_killed_or_paused_for_long_are_removed_and_no_others() -> None:
    async with running_processes() as processes:
        *others, sleeper, victim = processes
        others[1].signal(signal.SIGSTOP)
        # The pause is what is tested.
        await asyncio.sleep(1.5)
        others[1].signal(signal.SIGCONT)
        victim.signal(signal.SIGKILL)
        sleeper.signal(signal.SIGSTOP)
        gone = {victim.name: "DEAD", sleeper.name: "DEAD"}
        for process in others:
            await process.until(
                lambda status: status.removed.keys() >= gone.keys(), "both are gone"
            )
        # It sleeps on, as long as it would take anybody to look after it.
        await asyncio.sleep(by_tier(test=0.0, nightly=20.0))
        sleeper.signal(signal.SIGCONT)
        await all_agree([*others, sleeper])
        for process in others:
            assert process.removed == gone, "the short pause has consequences"
        # Nor did it take the others for dead, because it had not heard from them.
        assert sleeper.removed == {victim.name: "DEAD"}
