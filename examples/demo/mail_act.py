"""The second part: durable messages, both nodes killed in turn, the reconciliation."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from .board import MailBoard
from .books import Books, Counts, read_entries
from .mail_verdict import Absence, MailEvidence, mail_checks, mail_items
from .payments import ACCOUNTS
from .records import Command, Mailing
from .screen import Table
from .stage import Stage
from .tables import MAIL_HEADING, mail_row, reconciliation_lines
from .tally import Tally

PAYER, BOOKER = "alpha", "beta"
# What is still missing after so long is taken for lost.
TIMEOUT_S = 30.0
# Shares of the running time at which each is killed and started again.
BOOKER_AWAY, PAYER_AWAY = (0.2, 0.35), (0.55, 0.7)


class MailAct:
    """One node pays and the other books, whichever of them is killed meanwhile."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self._seconds = seconds
        self._board = MailBoard()

    @property
    def title(self) -> str:
        """What is about to be seen."""
        return (
            f"{ACCOUNTS} accounts pay for {self._seconds:g} s;"
            f" {BOOKER} is killed after {self._seconds * BOOKER_AWAY[0]:.3g} s,"
            f" {PAYER} after {self._seconds * PAYER_AWAY[0]:.3g} s"
        )

    async def play(self) -> bool:
        """Play it; True if everything adds up."""
        for name in (PAYER, BOOKER):
            Tally.create(self._stage.path(name, "runs"))
        await self._start(BOOKER)
        await self._start(PAYER)
        with closing(Books(self._stage.path(PAYER, "db"), self._stage.path(BOOKER, "db"))) as books:
            booker_away, payer_away = await self._run(books)
        evidence = self._gather(booker_away, payer_away)
        found = mail_checks(evidence)
        self._stage.screen.say(*reconciliation_lines(mail_items(evidence), found))
        return all(check.holds for check in found)

    async def _run(self, books: Books) -> tuple[Absence, Absence]:
        stage = self._stage
        started_s = time.monotonic()
        async with stage.drawing(lambda: self._count(books)):
            self._show(PAYER)
            self._show(BOOKER)
            booker_away = await self._send_away(BOOKER, started_s, BOOKER_AWAY)
            await self._wait_for_more(lambda: books.count().bookings)
            payer_away = await self._send_away(PAYER, started_s, PAYER_AWAY)
            await self._wait_for_more(lambda: books.count().payments)
            await stage.pass_until(started_s + self._seconds)
            await self._wait_for_arrival(books)
            await stage.stop(PAYER, BOOKER)
        self._count(books)
        self._board.end()
        stage.screen.finish(self._make_table())
        return booker_away, payer_away

    async def _send_away(self, name: str, started_s: float, shares: tuple[float, float]) -> Absence:
        """Kill a node, and start it again later."""
        stage = self._stage
        await stage.pass_until(started_s + self._seconds * shares[0])
        await stage.kill(name)
        killed_s = time.monotonic()
        self._board.note(f"{name} was killed (SIGKILL) in the middle of its work", killed_s)
        await stage.pass_until(started_s + self._seconds * shares[1])
        stage.state(name, "starting again")
        await self._start(name)
        returned_s = time.monotonic()
        self._show(name)
        self._board.note(f"{name} is back, with what its database holds", returned_s)
        return Absence(name=name, killed_s=killed_s, returned_s=returned_s)

    async def _start(self, name: str) -> None:
        stage = self._stage
        peer = BOOKER if name == PAYER else PAYER
        task = Mailing(
            peer=peer,
            address=stage.address(peer),
            store=str(stage.path(name, "db")),
            runs=str(stage.path(name, "runs")),
            pays=name == PAYER,
        )
        await stage.start(name, task)

    def _show(self, name: str) -> None:
        doing = "posts payments, files receipts" if name == PAYER else "books payments"
        self._stage.state(name, doing)

    async def _wait_for_more(self, count: Callable[[], int]) -> None:
        """Until a node that is back goes on; usually it does before that is heard of."""
        before = count()
        await self._stage.wait_for(lambda: count() > before, TIMEOUT_S)

    async def _wait_for_arrival(self, books: Books) -> None:
        """Until nothing is paid any more, and there is a receipt for each payment."""
        stage = self._stage
        stage.tell(PAYER, Command.REST)
        stage.state(PAYER, "waits for the last receipts")
        await stage.wait_for(lambda: stage.is_resting(PAYER), TIMEOUT_S)
        await stage.wait_for(lambda: has_all(books.count()), TIMEOUT_S)

    def _count(self, books: Books) -> Table:
        self._board.add(books.count())
        return self._make_table()

    def _make_table(self) -> Table:
        return Table(
            nodes=self._stage.nodes,
            heading=MAIL_HEADING,
            rows=[mail_row(row) for row in self._board.rows],
            log=self._stage.last_log_line(),
        )

    def _gather(self, booker_away: Absence, payer_away: Absence) -> MailEvidence:
        payer_path, booker_path = (self._stage.path(name, "db") for name in (PAYER, BOOKER))
        return MailEvidence(
            payments=read_entries(payer_path, "payments"),
            bookings=read_entries(booker_path, "bookings"),
            receipts=read_entries(payer_path, "receipts"),
            booking_runs=Tally.read(self._stage.path(BOOKER, "runs")),
            receipt_runs=Tally.read(self._stage.path(PAYER, "runs")),
            payer_away=payer_away,
            booker_away=booker_away,
        )


def has_all(counts: Counts) -> bool:
    """Whether there is a receipt for each payment."""
    return counts.receipts >= counts.payments
