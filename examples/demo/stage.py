"""The nodes of a story: started, shown, killed, stopped, and gone at its end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from postroad.admin import issue

from .processes import NodeProcess, OnReport
from .records import Command, NodeConfig, NodeTask
from .screen import NodeState, Screen, Table

DRAW_EVERY_S = 0.2
LOOK_EVERY_S = 0.05

_LOG_TAIL_BYTES = 4_096


class Stage:
    """Node processes of these names, with their files in a directory."""

    def __init__(self, screen: Screen, directory: Path, names: Sequence[str]) -> None:
        self.screen = screen
        self.names = names
        self._directory = directory
        self._processes: dict[str, NodeProcess] = {}
        self._states: dict[str, NodeState] = {}

    def make_certificates(self) -> None:
        """Make a certificate for each node; the authority is there."""
        for name in self.names:
            issue(self._directory, name)

    def path(self, name: str, suffix: str) -> Path:
        """A file of a node."""
        return self._directory / f"{name}.{suffix}"

    # Nodes.

    async def start(
        self, name: str, task: NodeTask, on_report: OnReport = lambda report: None
    ) -> str:
        """Start a node, where it was before if it was there; returns its address."""
        before = self._states.get(name)
        config = NodeConfig(
            name=name,
            bind="127.0.0.1:0" if before is None else before.address,
            certificate=str(self.path(name, "pem")),
            key=str(self.path(name, "key")),
            trust=str(self.path("ca", "pem")),
            task=task,
        )
        process = await NodeProcess.start(config, self.path(name, "log"), on_report)
        self._processes[name] = process
        address = await process.wait_ready()
        self._states[name] = NodeState(name, process.pid, address, "ready")
        return address

    def is_known(self, name: str) -> bool:
        """Whether a node was ever started."""
        return name in self._states

    def address(self, name: str) -> str:
        """Where a node is, or was."""
        return self._states[name].address

    def tell(self, name: str, command: Command) -> None:
        """Have a node do something."""
        self._processes[name].tell(command)

    def is_resting(self, name: str) -> bool:
        """Whether a node that pays, posts or sends was told to stop that, and has."""
        return self._processes[name].is_resting

    async def kill(self, name: str) -> None:
        """End a node without a warning."""
        await self._processes[name].kill()
        del self._processes[name]
        self.state(name, "killed")

    async def stop(self, *names: str) -> None:
        """Let nodes finish what they do and end, one after the other."""
        for name in names:
            self.state(name, "stops")
            await self._processes[name].stop()
            del self._processes[name]
            self.state(name, "stopped")

    async def clear(self) -> None:
        """End whatever is left, and leave the terminal as it was."""
        await asyncio.gather(*(process.clear() for process in self._processes.values()))
        self.screen.close()

    async def pass_until(self, when_s: float) -> None:
        """Let time pass; fails as soon as a process ends that should not."""
        while (left_s := when_s - time.monotonic()) > 0:
            for process in self._processes.values():
                if process.has_ended:
                    raise await process.explain_end()
            await asyncio.sleep(min(left_s, DRAW_EVERY_S))

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Let time pass until something is so; False if it is not so in time."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                return False
            await self.pass_until(time.monotonic() + LOOK_EVERY_S)
        return True

    # What is seen of them.

    def state(self, name: str, doing: str) -> None:
        """Say what a node is doing."""
        self._states[name] = replace(self._states[name], doing=doing)

    @property
    def nodes(self) -> Sequence[NodeState]:
        """All nodes, as they are shown."""
        return [self._states[name] for name in self.names]

    @asynccontextmanager
    async def drawing(self, make_table: Callable[[], Table]) -> AsyncIterator[None]:
        """Keep the screen up to date; its failure, or that of the block, ends both."""
        try:
            async with asyncio.TaskGroup() as group:
                drawing = group.create_task(self._draw(make_table))
                yield
                drawing.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _draw(self, make_table: Callable[[], Table]) -> None:
        while True:
            self.screen.update(make_table())
            await asyncio.sleep(DRAW_EVERY_S)

    def last_log_line(self) -> str:
        """The newest line of the log that was written to last."""
        logs = [self.path(name, "log") for name in self.names]
        written = [log for log in logs if log.stat().st_size]
        if not written:
            return ""
        log = max(written, key=lambda it: it.stat().st_mtime_ns)
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES), os.SEEK_SET)
            lines = file.read().decode("utf-8", "replace").splitlines()
        return f"{log.stem}: {lines[-1]}"
