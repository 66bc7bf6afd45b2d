"""The third part: cells of five domains, a core killed, the other restarted, the reconciliation."""

from __future__ import annotations

import time
from functools import partial

from .board import CellCounts, CellsBoard
from .cells_journal import Attempted, Copied, Entry, Handled, Published, read_journal
from .cells_traffic import ATTEMPT_TIMEOUT_S, QUEUE, TOPIC
from .cells_verdict import CellsEvidence, cells_checks, cells_items
from .mail_verdict import Absence
from .processes import DemoFailed
from .records import Belonging, CellsReport, Command, Linking
from .screen import Table
from .stage import Stage
from .tables import CELLS_HEADING, cells_row, reconciliation_lines, traffic_foot

CORES = ("core-1", "core-2")
CONSUMERS = ("sat-1", "sat-2")
SENDER = "sat-3"
SATELLITES = (*CONSUMERS, SENDER)
DOMAINS = (*CORES, *SATELLITES)
KILLED, RESTARTED = CORES
TIMEOUT_S = 30.0
# When nothing came for so long, nothing is on its way.
QUIET_S = 0.5
# Shares of the running time: a core is killed after the first and started again after the second,
# and the other is restarted after the third.
KILL_AT, RETURN_AT, RESTART_AT = 0.2, 0.45, 0.65


class CellsAct:
    """One satellite sends to the others, whichever core is away meanwhile."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self._seconds = seconds
        self._board = CellsBoard()
        # The newest report of each satellite, and whether they are worth a row.
        self._reports = dict.fromkeys(SATELLITES, CellsReport())
        self._is_sending = False

    @property
    def title(self) -> str:
        """What is about to be seen."""
        kill_s, return_s = self._seconds * KILL_AT, self._seconds * RETURN_AT
        return (
            f"{SENDER} calls the queue {QUEUE} of {' and '.join(CONSUMERS)}, and publishes to the"
            f" topic {TOPIC}, for {self._seconds:g} s;\n"
            f"{KILLED} is killed after {kill_s:.3g} s and started again after {return_s:.3g} s,"
            f" then {RESTARTED} is restarted in good order"
        )

    async def play(self) -> bool:
        """Play it; True if everything adds up."""
        for name in DOMAINS:
            await self._start(name)
        await self._wait_until_whole()
        evidence = await self._run()
        found = cells_checks(evidence)
        self._stage.screen.say(*reconciliation_lines(cells_items(evidence), found))
        return all(check.holds for check in found)

    async def _run(self) -> CellsEvidence:
        stage, seconds = self._stage, self._seconds
        started_s = time.monotonic()
        async with stage.drawing(self._make_table):
            self._show_all()
            self._is_sending = True
            stage.tell(SENDER, Command.BEGIN)
            await stage.pass_until(started_s + seconds * KILL_AT)
            killed_s, noticed_s = await self._kill()
            # By then every call has ended that the kill may have cost an answer.
            await stage.pass_until(
                max(started_s + seconds * RETURN_AT, noticed_s + ATTEMPT_TIMEOUT_S)
            )
            await self._wait_for_answers()
            returned_s = await self._bring_back()
            await self._wait_until_whole()
            await stage.pass_until(started_s + seconds * RESTART_AT)
            restarted = await self._restart()
            await self._wait_until_whole()
            await stage.pass_until(started_s + seconds)
            await self._wait_for_the_rest()
            await stage.stop(SENDER, *CONSUMERS, *CORES)
        self._board.end()
        stage.screen.finish(self._make_table())
        killed = Absence(name=KILLED, killed_s=killed_s, returned_s=returned_s)
        return self._gather(killed, noticed_s, restarted)

    # The domains.

    async def _start(self, name: str) -> None:
        stage = self._stage
        cores = {core: stage.address(core) for core in CORES if stage.is_known(core)}
        if name in CORES:
            await stage.start(name, Linking(cores=cores))
        else:
            journal = str(stage.path(name, "journal"))
            task = Belonging(cores=cores, journal=journal, sends=name == SENDER)
            await stage.start(name, task, partial(self._take, name))

    def _show_all(self) -> None:
        for name in CORES:
            self._stage.state(name, "core: passes messages on")
        for name in CONSUMERS:
            self._stage.state(name, f"satellite: consumes {QUEUE}, hears {TOPIC}")
        self._stage.state(SENDER, f"satellite: calls {QUEUE}, publishes and hears {TOPIC}")

    async def _kill(self) -> tuple[float, float]:
        """Kill a core; returns when, and when all satellites knew."""
        killed_s = time.monotonic()
        await self._stage.kill(KILLED)
        self._board.note(f"{KILLED} was killed (SIGKILL) in the middle of traffic", killed_s)
        if not await self._stage.wait_for(self._is_kill_noticed, TIMEOUT_S):
            raise DemoFailed(f"nobody noticed within {TIMEOUT_S:g} s that {KILLED} was killed")
        return killed_s, max(report.at_s for report in self._reports.values())

    def _is_kill_noticed(self) -> bool:
        return not any(KILLED in report.cores for report in self._reports.values())

    async def _bring_back(self) -> float:
        """Start the core again where it was; returns when it listened."""
        self._stage.state(KILLED, "starting again")
        await self._start(KILLED)
        returned_s = time.monotonic()
        self._stage.state(KILLED, "core: passes messages on again")
        self._board.note(f"{KILLED} listens on the same port again", returned_s)
        return returned_s

    async def _restart(self) -> Absence:
        """Let a core go in good order, and start it again at once."""
        told_s = time.monotonic()
        self._board.note(f"{RESTARTED} is told to stop, and says goodbye", told_s)
        await self._stage.stop(RESTARTED)
        self._stage.state(RESTARTED, "starting again")
        await self._start(RESTARTED)
        returned_s = time.monotonic()
        self._stage.state(RESTARTED, "core: passes messages on again")
        self._board.note(f"{RESTARTED} listens on the same port again", returned_s)
        return Absence(name=RESTARTED, killed_s=told_s, returned_s=returned_s)

    # Waiting.

    async def _wait_until_whole(self) -> None:
        """Until every satellite may send through every core, and they know what it offers."""
        if not await self._stage.wait_for(self._is_whole, TIMEOUT_S):
            raise DemoFailed(f"the domains were not connected within {TIMEOUT_S:g} s")

    def _is_whole(self) -> bool:
        reports = self._reports.values()
        return all(it.is_settled and len(it.cores) == len(CORES) for it in reports)

    async def _wait_for_answers(self) -> None:
        """Until calls are answered, although a core is away."""
        before = self._reports[SENDER].totals.answered
        await self._stage.wait_for(
            lambda: self._reports[SENDER].totals.answered > before, TIMEOUT_S
        )

    async def _wait_for_the_rest(self) -> None:
        """Until nothing is sent any more, and no copy is on its way."""
        stage = self._stage
        stage.tell(SENDER, Command.REST)
        stage.state(SENDER, "satellite: waits for the last answers")
        await stage.wait_for(lambda: stage.is_resting(SENDER), TIMEOUT_S)
        self._is_sending = False
        before = -1
        while (copies := self._count().copies) != before:
            before = copies
            await stage.pass_until(time.monotonic() + QUIET_S)

    # What is seen.

    def _take(self, name: str, report: CellsReport) -> None:
        self._reports[name] = report
        if name == SENDER and self._is_sending:
            self._board.add(self._count())

    def _count(self) -> CellCounts:
        reports, sender = self._reports, self._reports[SENDER]
        return CellCounts(
            at_s=sender.at_s,
            totals=sender.totals,
            latencies=sender.latencies,
            handled={name: reports[name].handled for name in CONSUMERS},
            published=sender.published,
            copies=sum(report.copies for report in reports.values()),
            routes=sum(len(report.cores) for report in reports.values()),
        )

    def _make_table(self) -> Table:
        return Table(
            nodes=self._stage.nodes,
            heading=CELLS_HEADING,
            rows=[cells_row(row) for row in self._board.rows],
            foot=traffic_foot(self._board),
            log=self._stage.last_log_line(),
        )

    def _gather(self, killed: Absence, noticed_s: float, restarted: Absence) -> CellsEvidence:
        journals = {name: read_journal(self._stage.path(name, "journal")) for name in SATELLITES}
        sent = journals[SENDER]
        return CellsEvidence(
            totals=self._reports[SENDER].totals,
            attempts=[it for it in sent if isinstance(it, Attempted)],
            published=[it for it in sent if isinstance(it, Published)],
            handled={name: _handled(journals[name]) for name in CONSUMERS},
            copies={name: _copies(journals[name]) for name in SATELLITES},
            killed=killed,
            noticed_s=noticed_s,
            restarted=restarted,
        )


def _handled(journal: list[Entry]) -> list[Handled]:
    return [it for it in journal if isinstance(it, Handled)]


def _copies(journal: list[Entry]) -> list[Copied]:
    return [it for it in journal if isinstance(it, Copied)]
