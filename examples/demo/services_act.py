"""The fourth part: services on four nodes, one of them killed and back, the reconciliation."""

from __future__ import annotations

import time
from functools import partial

from .board import ServiceCounts, ServicesBoard
from .mail_verdict import Absence
from .moleculer_act import MoleculerAct
from .processes import DemoFailed
from .records import Command, ServicesReport, Serving
from .screen import Table
from .services_journal import (
    Emitted,
    Entry,
    Heard,
    Streamed,
    Summed,
    Taken,
    Tried,
    read_services_journal,
)
from .services_verdict import ServicesEvidence, services_checks, services_items
from .stage import Stage
from .tables import SERVICES_HEADING, reconciliation_lines, services_row, traffic_foot

SENDER, DESK = "gate", "desk"
QUOTES = ("quotes-1", "quotes-2")
KILLED = QUOTES[0]
# The desk is the core, so it comes first and goes last.
BROKERS = (DESK, *QUOTES, SENDER)
# Which nodes hear an event together as one.
GROUPS = {"quotes": QUOTES, "audit": (SENDER,)}
TIMEOUT_S = 30.0
# When nothing came for so long, nothing is on its way.
QUIET_S = 0.5
# Shares of the running time: after the first a node is killed, after the second started again.
KILL_AT, RETURN_AT = 0.25, 0.65


class ServicesAct:
    """Orders go to a desk, which asks one of two nodes for the price."""

    def __init__(self, stage: Stage, seconds: float, moleculer: MoleculerAct | None) -> None:
        self._stage = stage
        self._seconds = seconds
        self._moleculer = moleculer
        self._board = ServicesBoard()
        # The newest report of each node, and whether they are worth a row.
        self._reports = dict.fromkeys(BROKERS, ServicesReport())
        # What the process of a node had counted before it was killed.
        self._former = ServicesReport()
        self._is_sending = False

    @property
    def title(self) -> str:
        """What is about to be seen."""
        kill_s, return_s = self._seconds * KILL_AT, self._seconds * RETURN_AT
        return (
            f"{SENDER} calls desk.buy, which calls quotes.price of {' or '.join(QUOTES)}, for"
            f" {self._seconds:g} s, with events\n"
            f"and streams besides; {KILLED} is killed after {kill_s:.3g} s and started again after"
            f" {return_s:.3g} s"
        )

    async def play(self) -> bool:
        """Play it; True if everything adds up."""
        for name in BROKERS:
            await self._start(name)
        await self._wait_until_whole()
        evidence = await self._run()
        found = services_checks(evidence)
        self._stage.screen.say(*reconciliation_lines(services_items(evidence), found))
        adds_up = all(check.holds for check in found)
        if self._moleculer is not None:
            return await self._moleculer.play() and adds_up
        return adds_up

    async def _run(self) -> ServicesEvidence:
        stage, seconds = self._stage, self._seconds
        started_s = time.monotonic()
        async with stage.drawing(self._make_table):
            self._show_all()
            self._is_sending = True
            stage.tell(SENDER, Command.BEGIN)
            await stage.pass_until(started_s + seconds * KILL_AT)
            killed_s, noticed_s = await self._kill()
            await stage.pass_until(started_s + seconds * RETURN_AT)
            await self._wait_for_orders()
            returned_s = await self._bring_back()
            await self._wait_until_whole()
            await stage.pass_until(started_s + seconds)
            await self._wait_for_prices()
            await self._wait_for_the_rest()
            await stage.stop(SENDER, *QUOTES, DESK)
        self._board.end()
        stage.screen.finish(self._make_table())
        away = Absence(name=KILLED, killed_s=killed_s, returned_s=returned_s)
        return self._gather(away, noticed_s)

    # The nodes.

    async def _start(self, name: str) -> None:
        stage = self._stage
        offers = "quotes" if name in QUOTES else "audit" if name == SENDER else "desk"
        task = Serving(
            cores={} if name == DESK else {DESK: stage.address(DESK)},
            journal=str(stage.path(name, "journal")),
            offers=offers,
            sends=name == SENDER,
        )
        await stage.start(name, task, partial(self._take, name))

    def _show_all(self) -> None:
        self._stage.state(DESK, "core of the cells; offers desk.buy")
        for name in QUOTES:
            self._stage.state(name, "offers quotes.price, hears of large orders")
        self._stage.state(SENDER, "makes orders and streams, hears of large orders")

    async def _kill(self) -> tuple[float, float]:
        """Kill a node; returns when, and when all others knew."""
        killed_s = time.monotonic()
        await self._stage.kill(KILLED)
        self._board.note(f"{KILLED} was killed (SIGKILL) in the middle of traffic", killed_s)
        self._former = self._reports[KILLED]
        self._reports[KILLED] = ServicesReport()
        if not await self._stage.wait_for(self._is_kill_noticed, TIMEOUT_S):
            raise DemoFailed(f"nobody noticed within {TIMEOUT_S:g} s that {KILLED} was killed")
        noticed_s = time.monotonic()
        self._board.note(f"all other nodes miss {KILLED}", noticed_s)
        return killed_s, noticed_s

    def _is_kill_noticed(self) -> bool:
        return not any(KILLED in report.nodes for report in self._reports.values())

    async def _bring_back(self) -> float:
        """Start the node again where it was; returns when it listened."""
        self._stage.state(KILLED, "starting again")
        await self._start(KILLED)
        returned_s = time.monotonic()
        self._stage.state(KILLED, "offers quotes.price again")
        self._board.note(f"{KILLED} listens on the same port again", returned_s)
        return returned_s

    # Waiting.

    async def _wait_until_whole(self) -> None:
        """Until every node knows the services of all."""
        if not await self._stage.wait_for(self._is_whole, TIMEOUT_S):
            raise DemoFailed(f"the nodes did not know each other within {TIMEOUT_S:g} s")

    def _is_whole(self) -> bool:
        return all(it.nodes == sorted(BROKERS) for it in self._reports.values())

    async def _wait_for_orders(self) -> None:
        """Until orders are filled, with whatever nodes there are."""
        before = self._reports[SENDER].totals.answered
        await self._stage.wait_for(
            lambda: self._reports[SENDER].totals.answered > before, TIMEOUT_S
        )

    async def _wait_for_prices(self) -> None:
        """Until the node that was killed is asked again."""
        await self._stage.wait_for(lambda: self._reports[KILLED].priced > 0, TIMEOUT_S)

    async def _wait_for_the_rest(self) -> None:
        """Until nothing is sent any more, and no event is on its way."""
        stage = self._stage
        stage.tell(SENDER, Command.REST)
        stage.state(SENDER, "waits for the last answers")
        await stage.wait_for(lambda: stage.is_resting(SENDER), TIMEOUT_S)
        self._is_sending = False
        before = -1
        while (heard := self._count().heard) != before:
            before = heard
            await stage.pass_until(time.monotonic() + QUIET_S)

    # What is seen.

    def _take(self, name: str, report: ServicesReport) -> None:
        self._reports[name] = report
        if name == SENDER and self._is_sending:
            self._board.add(self._count())

    def _count(self) -> ServiceCounts:
        reports, sender, former = self._reports, self._reports[SENDER], self._former
        priced = {name: reports[name].priced for name in QUOTES}
        priced[KILLED] += former.priced
        return ServiceCounts(
            at_s=sender.at_s,
            totals=sender.totals,
            latencies=sender.latencies,
            priced=priced,
            heard=former.heard + sum(report.heard for report in reports.values()),
            stream_bytes=sender.stream_bytes,
            nodes=len(sender.nodes),
        )

    def _make_table(self) -> Table:
        return Table(
            nodes=self._stage.nodes,
            heading=SERVICES_HEADING,
            rows=[services_row(row) for row in self._board.rows],
            foot=traffic_foot(self._board),
            log=self._stage.last_log_line(),
        )

    def _gather(self, killed: Absence, noticed_s: float) -> ServicesEvidence:
        stage = self._stage
        journals = {it: read_services_journal(stage.path(it, "journal")) for it in BROKERS}
        everything = [entry for journal in journals.values() for entry in journal]
        return ServicesEvidence(
            totals=self._reports[SENDER].totals,
            tried=[it for it in everything if isinstance(it, Tried)],
            taken={name: _taken(journals[name]) for name in (DESK, *QUOTES)},
            emitted=[it for it in everything if isinstance(it, Emitted)],
            heard={
                group: [it for name in names for it in _heard(journals[name])]
                for group, names in GROUPS.items()
            },
            streams=[it for it in everything if isinstance(it, Streamed)],
            summed=[it for it in everything if isinstance(it, Summed)],
            killed=killed,
            killed_group="quotes",
            noticed_s=noticed_s,
        )


def _taken(journal: list[Entry]) -> list[Taken]:
    return [it for it in journal if isinstance(it, Taken)]


def _heard(journal: list[Entry]) -> list[Heard]:
    return [it for it in journal if isinstance(it, Heard)]
