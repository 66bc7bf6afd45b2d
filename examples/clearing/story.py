"""What happens when: nodes start, banks pay, three are killed and come back, all is reconciled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from postroad import PostroadError

from .board import HEADING, Board, Second
from .books import read_bank, read_house
from .payments import BANKS, HOUSE
from .screen import Line, Screen, Table, TableRow, Tone
from .stage import CORES, NODES, Stage
from .verdict import Absence, Check, Evidence, checks

# Shares of the running time at which each is killed and started again, and what it was at.
# The house is the first, because Spark takes longest to be back.
KILLS = (
    (HOUSE, 0.1, 0.2, "with its job at work"),
    ("bank-b", 0.35, 0.5, "in the middle of its payments"),
    ("core-1", 0.65, 0.8, "with messages passing through it"),
)
# What has not come to an end after so long never will.
END_TIMEOUT_S = 300.0
# Spark has to start before anything is cleared.
FIRST_TIMEOUT_S = 300.0
_LOOK_S = 0.25
_BOOKS = {**dict.fromkeys(BANKS, "bank.books"), HOUSE: "house.books"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command line asked for."""

    seconds: float
    uses_spark: bool
    directory: Path | None
    """Where files go and stay; None for a place of their own that is removed at the end."""


class Story:
    """One run of the demo, with its files in a directory."""

    def __init__(self, plan: Plan, screen: Screen, directory: Path) -> None:
        self._plan = plan
        self._screen = screen
        self._stage = Stage(directory, uses_spark=plan.uses_spark)
        self._board = Board()
        self._began_s = time.monotonic()
        self._first_pending: dict[int, int | None] = {}
        """What each process of the house found in its job, until Spark is seen to work on it."""

    async def play(self) -> bool:
        """Play it; True if everything adds up."""
        try:
            await self._begin()
            async with self._watching():
                await self._run()
            self._screen.finish(self._table())
            return await self._reconcile()
        finally:
            self._screen.close()
            await self._stage.clear()

    async def _begin(self) -> None:
        stage, screen = self._stage, self._screen
        on = "on Spark" if self._plan.uses_spark else "in one process"
        screen.say(
            Line("Postroad demo: a clearing house", Tone.TITLE),
            Line(
                f"Two banks pay each other for {self._plan.seconds:g} s, and have it cleared {on}."
            ),
            Line(
                "Five nodes over mutual TLS 1.3: two cores, two banks, the house. Three get killed."
            ),
            Line(""),
        )
        stage.prepare()
        await stage.start(*CORES)
        await stage.start(*BANKS, HOUSE)
        watched = stage.nodes[CORES[1]]
        screen.say(Line(f"Look at them: {watched.url}/#token={watched.token}", Tone.NEWS), Line(""))

    # What happens.

    async def _run(self) -> None:
        board, seconds = self._board, self._plan.seconds
        if self._plan.uses_spark:
            board.note("  --- Spark starts; until its job is at work, payments wait in the mail")
        await self._wait_for(lambda: board.standing().cleared > 0, FIRST_TIMEOUT_S)
        began_s = time.monotonic()
        for name, killed, back, was_at in KILLS:
            await self._pass_until(began_s + killed * seconds)
            await self._stage.nodes[name].kill()
            board.forget(name)
            board.note(f"  --- {name} was killed (SIGKILL) {was_at}")
            await self._pass_until(began_s + back * seconds)
            await self._stage.restart(name)
            board.note(f"  --- {name} is back, with what its database holds")
        await self._pass_until(began_s + seconds)
        await self._end()

    async def _end(self) -> None:
        """Until nothing is paid any more, and every payment has come to its end."""
        board = self._board
        for name in BANKS:
            node = self._stage.nodes[name]
            await node.call("bank.rest")
            node.doing = "ends its payments"
        board.note("  --- the banks pay no more; what is under way comes to its end")
        await self._wait_for(self._is_over, END_TIMEOUT_S)
        # The last totals are told a second after the last payment.
        await self._pass_until(time.monotonic() + 2.0)
        await self._look()
        await self._stage.stop()

    def _is_over(self) -> bool:
        now = self._board.standing()
        return (
            now.begun == now.settled + now.refused
            and now.settled == now.cleared + now.dead
            and now.pending == 0
        )

    async def _pass_until(self, when_s: float) -> None:
        """Let time pass; fails as soon as a process ends that should not."""
        while (left_s := when_s - time.monotonic()) > 0:
            self._stage.check()
            await asyncio.sleep(min(left_s, _LOOK_S))

    async def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Let time pass until something is so; what never is so is for the reconciliation."""
        deadline_s = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline_s:
            await self._pass_until(time.monotonic() + _LOOK_S)

    # What is seen of it.

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Ask the nodes how they are, and show it; a failure, here or there, ends both."""
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch())
                yield
                watching.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _watch(self) -> None:
        next_s = time.monotonic()
        while True:
            await self._look()
            if time.monotonic() >= next_s:
                self._board.tick(time.monotonic() - self._began_s)
                next_s += 1.0
            await self._note_job()
            self._screen.update(self._table())
            await asyncio.sleep(_LOOK_S)

    async def _note_job(self) -> None:
        """Say once, for each process of the house, that Spark has started."""
        pid, pending = self._stage.nodes[HOUSE].pid, self._board.last(HOUSE, "pending")
        if pid is None or pending is None or not self._plan.uses_spark:
            return
        if self._first_pending.setdefault(pid, pending) not in (None, pending):
            self._first_pending[pid] = None
            progress = await self._ask_job()
            seen = f"; its UI is {progress['spark_ui_url']}" if progress else ""
            self._board.note(f"  --- Spark has started: its job is at work{seen}")

    async def _ask_job(self) -> dict[str, Any] | None:
        try:
            job = await self._stage.nodes[HOUSE].ask("job.show", {"job": "clearing"})
        except PostroadError:
            # It is being killed.
            return None
        progress: dict[str, Any] | None = job["progress"]
        return progress

    async def _look(self) -> None:
        await asyncio.gather(*(self._ask(name, it) for name, it in _BOOKS.items()))

    async def _ask(self, name: str, action: str) -> None:
        node = self._stage.nodes[name]
        if node.doing not in ("runs", "ends its payments"):
            return
        try:
            counts = await node.call(action)
        except PostroadError:
            # It is being killed, or has much to do; it is asked again.
            return
        if node.pid is not None:
            self._board.tell(name, counts)

    def _table(self) -> Table:
        return Table(
            nodes=[self._stage.nodes[it] for it in NODES],
            heading=HEADING,
            rows=[_row(it) for it in self._board.seconds],
        )

    # What came of it.

    async def _reconcile(self) -> bool:
        stage, board = self._stage, self._board
        found = checks(
            Evidence(
                banks={it: await read_bank(stage.store(it)) for it in BANKS},
                house=await read_house(stage.store(HOUSE)),
                asked=board.sum("asked"),
                answered=board.sum("answered"),
                unanswered=board.sum("unanswered"),
                cut_off=board.sum("cut_off"),
                wrong=board.sum("wrong"),
                replayed=board.sum("replayed"),
                absences=[
                    Absence(name, stage.nodes[name].killed_s, stage.nodes[name].returned_s, was_at)
                    for name, _, _, was_at in KILLS
                ],
            )
        )
        adds_up = all(it.holds for it in found)
        self._screen.say(Line(""), Line("Reconciliation", Tone.TITLE), *map(_line, found), Line(""))
        text = "It all adds up." if adds_up else "It does not add up: see the lines marked NOT."
        took_s = time.monotonic() - self._began_s
        self._screen.say(Line(f"{text} ({took_s:.0f} s)", _tone(adds_up)))
        return adds_up


def _row(second: Second) -> TableRow:
    return TableRow([Line(str(second)), *(Line(it, Tone.NEWS) for it in second.notes)])


def _line(check: Check) -> Line:
    return Line(f"  {'ok ' if check.holds else 'NOT'}  {check.text}", _tone(check.holds))


def _tone(is_good: bool) -> Tone:
    return Tone.GOOD if is_good else Tone.BAD
