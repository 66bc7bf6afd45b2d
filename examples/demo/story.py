"""What happens when: certificates, start, steady traffic, a kill, a return, the reconciliation."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from postroad.admin import create_root, issue

from .board import Board
from .node import Tally
from .processes import DemoFailed, NodeProcess
from .records import NodeConfig
from .screen import Line, NodeState, Screen, Tone, reconciliation_lines
from .verdict import Evidence, checks

CALLER, PEER = "alpha", "beta"
DRAW_EVERY_S = 0.2
RECOVERY_TIMEOUT_S = 30.0
# Shares of the running time: the peer is killed after the first and started again after the second.
KILL_AT, RETURN_AT = 0.4, 0.55

_LOG_TAIL_BYTES = 4_096


@dataclass(frozen=True)
class Plan:
    """What the command line asked for."""

    seconds: float
    callers: int
    payload_bytes: int


class Story:
    """One run of the demo in a directory of its own."""

    def __init__(self, plan: Plan, screen: Screen, directory: Path) -> None:
        self._plan = plan
        self._screen = screen
        self._directory = directory
        self._board = Board()
        self._processes: dict[str, NodeProcess] = {}
        self._states: dict[str, NodeState] = {}

    async def play(self) -> bool:
        """Play it; True if everything adds up. No process is left when this returns or raises."""
        try:
            self._prepare()
            await self._start(PEER)
            await self._start(CALLER, calls=self._states[PEER].address)
            evidence = await self._run()
        finally:
            await asyncio.gather(*(process.kill() for process in self._processes.values()))
            self._screen.close()
        self._screen.say(*reconciliation_lines(evidence))
        return all(check.holds for check in checks(evidence))

    # The acts.

    def _prepare(self) -> None:
        create_root(self._directory)
        for name in (CALLER, PEER):
            issue(self._directory, name)
            Tally.create(self._path(name, "tally"))

    async def _run(self) -> Evidence:
        plan = self._plan
        started_s = time.monotonic()
        async with self._drawing():
            self._state(CALLER, f"calls {PEER}, {plan.callers} requests at a time")
            self._state(PEER, "answers")
            await self._pass_until(started_s + plan.seconds * KILL_AT)
            errors_before_kill = self._board.errors_met
            killed_s = await self._kill_peer()
            await self._pass_until(started_s + plan.seconds * RETURN_AT)
            returned_s = await self._bring_peer_back()
            await self._pass_until(started_s + plan.seconds)
            await self._wait_for_recovery(killed_s)
            await self._stop_all()
        self._board.end()
        self._screen.finish(self._board, self._nodes(), self._last_log_line())
        if self._board.newest is None:
            raise DemoFailed(f"{CALLER} reported nothing")
        return Evidence(
            totals=self._board.newest.totals,
            handled=Tally.read(self._path(PEER, "tally")),
            errors_before_kill=errors_before_kill,
            reconnects=self._board.newest.reconnects,
            killed_s=killed_s,
            returned_s=returned_s,
        )

    async def _kill_peer(self) -> float:
        killed_s = time.monotonic()
        await self._processes[PEER].kill()
        del self._processes[PEER]
        self._state(PEER, "killed")
        self._board.note(f"{PEER} was killed (SIGKILL) in the middle of traffic", killed_s)
        return killed_s

    async def _bring_peer_back(self) -> float:
        """Start the peer again where it was; returns when it listened."""
        self._state(PEER, "starting again")
        self._board.note(f"{PEER} is started again", time.monotonic())
        await self._start(PEER, bind=self._states[PEER].address)
        returned_s = time.monotonic()
        self._state(PEER, "answers again")
        self._board.note(f"{PEER} listens on the same port again", returned_s)
        return returned_s

    async def _wait_for_recovery(self, killed_s: float) -> None:
        """Usually it is long over; a slow machine gets more time than it was given."""
        deadline_s = time.monotonic() + RECOVERY_TIMEOUT_S
        while self._board.newest is None or self._board.newest.totals.gap_ended_s < killed_s:
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"no answer within {RECOVERY_TIMEOUT_S:g} s after the return")
            await self._pass_until(time.monotonic() + DRAW_EVERY_S)

    async def _stop_all(self) -> None:
        """The caller first, which still needs its peer for what is in flight."""
        for name in (CALLER, PEER):
            self._state(name, "stops")
            await self._processes[name].stop()
            del self._processes[name]
            self._state(name, "stopped")

    # What the acts need.

    async def _start(
        self, name: str, *, bind: str = "127.0.0.1:0", calls: str | None = None
    ) -> None:
        config = NodeConfig(
            name=name,
            bind=bind,
            certificate=str(self._path(name, "pem")),
            key=str(self._path(name, "key")),
            trust=str(self._path("ca", "pem")),
            tally=str(self._path(name, "tally")),
            calls=calls,
            callers=self._plan.callers,
            payload_bytes=self._plan.payload_bytes,
        )
        process = await NodeProcess.start(config, self._path(name, "log"), self._board.add)
        self._processes[name] = process
        address = await process.wait_ready()
        self._states[name] = NodeState(name, process.pid, address, "ready")

    async def _pass_until(self, when_s: float) -> None:
        """Let time pass; fails as soon as a process ends that should not."""
        while (left_s := when_s - time.monotonic()) > 0:
            for process in self._processes.values():
                if process.has_ended:
                    raise await process.explain_end()
            await asyncio.sleep(min(left_s, DRAW_EVERY_S))

    @asynccontextmanager
    async def _drawing(self) -> AsyncIterator[None]:
        """Keep the screen up to date; its failure, or that of the block, ends both."""
        try:
            async with asyncio.TaskGroup() as group:
                drawing = group.create_task(self._draw())
                yield
                drawing.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _draw(self) -> None:
        while True:
            self._screen.update(self._board, self._nodes(), self._last_log_line())
            await asyncio.sleep(DRAW_EVERY_S)

    def _state(self, name: str, doing: str) -> None:
        self._states[name] = replace(self._states[name], doing=doing)

    def _nodes(self) -> Sequence[NodeState]:
        return [self._states[name] for name in (CALLER, PEER)]

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / f"{name}.{suffix}"

    def _last_log_line(self) -> str:
        """The newest line of the log that was written to last."""
        logs = [self._path(name, "log") for name in (CALLER, PEER)]
        written = [log for log in logs if log.stat().st_size]
        if not written:
            return ""
        log = max(written, key=lambda it: it.stat().st_mtime_ns)
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES), os.SEEK_SET)
            lines = file.read().decode("utf-8", "replace").splitlines()
        return f"{log.stem}: {lines[-1]}"


def title_lines(plan: Plan) -> list[Line]:
    """What is about to be seen."""
    kill_s, return_s = plan.seconds * KILL_AT, plan.seconds * RETURN_AT
    return [
        Line("Postroad demo: two node processes over mutual TLS 1.3", Tone.TITLE),
        Line(
            f"{plan.callers} callers, {plan.payload_bytes}-byte requests, {plan.seconds:g} s;"
            f" {PEER} is killed after {kill_s:.3g} s and started again after {return_s:.3g} s"
        ),
        Line(""),
    ]
