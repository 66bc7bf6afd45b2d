"""The fifth part: payments that two banks agree on by flows, both banks killed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from postroad.admin.flows import Status, reading_flows

from .board import FlowsBoard
from .books import BankBooks, read_entries
from .flows_bank import CREDITS, DEBITS, REFUNDS, SETTLEMENTS, TELLERS
from .flows_verdict import BankEvidence, flows_checks, flows_items
from .mail_verdict import Absence
from .records import Agreeing, Command
from .screen import Table
from .stage import Stage
from .tables import FLOWS_HEADING, flows_row, reconciliation_lines
from .tally import Tally

BANKS = ("alpha", "beta")
# What has not ended after so long never will.
TIMEOUT_S = 30.0
# Shares of the running time at which each is killed and started again.
AWAY = {"beta": (0.2, 0.35), "alpha": (0.55, 0.7)}

_ENDED = (Status.DONE, Status.FAILED, Status.KILLED)


class FlowsAct:
    """Two banks pay each other, whichever of them is killed meanwhile."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self._seconds = seconds
        self._board = FlowsBoard()
        self._away: dict[str, Absence] = {}

    @property
    def title(self) -> str:
        """What is about to be seen."""
        first, second = (
            f"{name}{verb} after {self._seconds * AWAY[name][0]:.3g} s"
            for name, verb in zip(AWAY, (" is killed", ""), strict=True)
        )
        return (
            f"{TELLERS} tellers of each of two banks pay for {self._seconds:g} s; {first}, {second}"
        )

    async def play(self) -> bool:
        """Play it; True if everything adds up."""
        for name in BANKS:
            Tally.create(self._runs(name))
            await self._start(name)
        with closing(BankBooks(*map(self._store, BANKS))) as books:
            await self._run(books)
        banks = [await self._gather(name) for name in BANKS]
        found = flows_checks(banks)
        self._stage.screen.say(*reconciliation_lines(flows_items(banks), found))
        return all(check.holds for check in found)

    async def _run(self, books: BankBooks) -> None:
        stage = self._stage
        started_s = time.monotonic()
        async with stage.drawing(lambda: self._count(books)):
            for name, shares in AWAY.items():
                await self._send_away(name, started_s, shares)
                await self._wait_for_more(lambda: books.count().settled)
            await stage.pass_until(started_s + self._seconds)
            await self._wait_for_ends(books)
            await stage.stop(*BANKS)
        self._count(books)
        self._board.end()
        stage.screen.finish(self._make_table())

    async def _send_away(self, name: str, started_s: float, shares: tuple[float, float]) -> None:
        """Kill a bank, and start it again later."""
        stage = self._stage
        await stage.pass_until(started_s + self._seconds * shares[0])
        await stage.kill(name)
        killed_s = time.monotonic()
        self._board.note(f"{name} was killed (SIGKILL) in the middle of its payments", killed_s)
        await stage.pass_until(started_s + self._seconds * shares[1])
        stage.state(name, "starting again")
        await self._start(name)
        returned_s = time.monotonic()
        self._board.note(f"{name} is back, and its flows go on where they were", returned_s)
        self._away[name] = Absence(name=name, killed_s=killed_s, returned_s=returned_s)

    async def _start(self, name: str) -> None:
        stage = self._stage
        (peer,) = (it for it in BANKS if it != name)
        task = Agreeing(
            peer=peer,
            address=stage.address(peer),
            store=str(self._store(name)),
            runs=str(self._runs(name)),
        )
        await stage.start(name, task)
        stage.state(name, "pays, and takes payments in")

    def _store(self, name: str) -> Path:
        """The database of a bank; those of the second part stay as they are."""
        return self._stage.path(name, "bank.db")

    def _runs(self, name: str) -> Path:
        return self._stage.path(name, "bank.runs")

    async def _wait_for_more(self, count: Callable[[], int]) -> None:
        """Until a bank that is back goes on; usually it does before that is heard of."""
        before = count()
        await self._stage.wait_for(lambda: count() > before, TIMEOUT_S)

    async def _wait_for_ends(self, books: BankBooks) -> None:
        """Until nothing is paid any more, and every payment has ended."""
        stage = self._stage
        for name in BANKS:
            stage.tell(name, Command.REST)
            stage.state(name, "ends its payments")
        await stage.wait_for(lambda: all(map(stage.is_resting, BANKS)), TIMEOUT_S)
        await stage.wait_for(lambda: books.count().under_way == 0, TIMEOUT_S)

    def _count(self, books: BankBooks) -> Table:
        self._board.add(books.count())
        return self._make_table()

    def _make_table(self) -> Table:
        return Table(
            nodes=self._stage.nodes,
            heading=FLOWS_HEADING,
            rows=[flows_row(row) for row in self._board.rows],
            log=self._stage.last_log_line(),
        )

    async def _gather(self, name: str) -> BankEvidence:
        path = self._store(name)
        async with reading_flows(str(path)) as flows:
            numbers = {status: len(await flows.all_of(status)) for status in Status}
        return BankEvidence(
            name=name,
            debits=read_entries(path, DEBITS),
            credits=read_entries(path, CREDITS),
            settlements=read_entries(path, SETTLEMENTS),
            refunds=read_entries(path, REFUNDS),
            runs=Tally.read(self._runs(name)),
            flows=sum(numbers.values()),
            unended=sum(number for status, number in numbers.items() if status not in _ENDED),
            away=self._away[name],
        )
