"""Members in processes of their own, killed and paused, with the configuration users get."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from postroad.cluster import MembershipConfig
from tests.support.source_tree import ROOT

NAMES = [f"node-{number}" for number in range(8)]
CONFIG = MembershipConfig()
# What a busy machine, and the way of the news, may add to the time-out.
SLACK_S = 10.0


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
    async def start(cls, name: str, *contacts: str) -> Process:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.cluster_node", name, *contacts),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(name, process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if self.address:
                self.changes.append(Change(*json.loads(line)))
            else:
                self.address = line.decode().strip()
            self._stirred.set()

    async def until(
        self, condition: Callable[[Process], object], what: str, timeout_s: float
    ) -> None:
        """Return as soon as the condition holds of it; looked at after each line."""
        try:
            async with asyncio.timeout(timeout_s):
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

    def removals(self, name: str) -> list[Change]:
        return [it for it in self.changes if it.kind == "removed" and it.name == name]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading
        # The pipes' transports are closed by the loop only after this turn.
        self._process._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def eight_processes() -> AsyncIterator[list[Process]]:
    """Processes that all know each other; killed at the end."""
    processes: list[Process] = []
    try:
        first = await Process.start(NAMES[0])
        processes.append(first)
        await first.until(lambda it: it.address, "it has begun", 60)
        starts = (Process.start(name, first.address) for name in NAMES[1:])
        processes += await asyncio.gather(*starts)
        await all_agree(processes)
        yield processes
    finally:
        for process in processes:
            await process.kill()


async def all_agree(processes: list[Process], timeout_s: float = 60.0) -> None:
    """Each of them knows all the others, and nobody else."""
    names = {process.name for process in processes}
    for process in processes:
        await process.until(
            lambda it: {*it.names, it.name} == names, f"the members are {names}", timeout_s
        )


async def test_killed_process_is_removed_by_all_and_a_short_pause_harms_nobody() -> None:
    async with eight_processes() as processes:
        *others, victim = processes
        paused = others[3]
        paused.signal(signal.SIGSTOP)
        # The pause is what is tested.
        await asyncio.sleep(1.5)
        paused.signal(signal.SIGCONT)

        killed_at = time.monotonic()
        victim.signal(signal.SIGKILL)
        limit_s = CONFIG.failure_timeout_s + SLACK_S
        for process in others:
            await process.until(lambda it: it.removals(victim.name), "it was killed", limit_s + 60)
            (removal,) = process.removals(victim.name)
            assert removal.state == "DEAD"
            assert removal.time - killed_at < limit_s
            # By now the pause would have had its consequences too.
            assert not process.removals(paused.name)
        assert not [it for it in paused.changes if it.kind == "removed" and it.name != victim.name]
        await all_agree(others)


async def test_process_paused_for_long_is_removed_and_comes_back() -> None:
    async with eight_processes() as processes:
        *others, paused = processes
        paused_at = time.monotonic()
        paused.signal(signal.SIGSTOP)
        for process in others:
            await process.until(
                lambda it: it.removals(paused.name),
                "it does not answer",
                CONFIG.failure_timeout_s + SLACK_S + 60,
            )
        # It sleeps on, as long as it would take anybody to look after it.
        await asyncio.sleep(max(0.0, paused_at + 20 - time.monotonic()))
        paused.signal(signal.SIGCONT)
        await all_agree(processes)
        for process in others:
            assert len(process.removals(paused.name)) == 1
            assert not [
                it for it in process.changes if it.kind == "removed" and it.name != paused.name
            ]
        # Nor did it take the others for dead, because it had not heard from them.
        assert not [it for it in paused.changes if it.kind == "removed"]
