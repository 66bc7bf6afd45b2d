"""The fourth part: a job on Spark clears payments, its node is killed, the reconciliation."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import Any

from postroad.admin.pipeline import count_dead, dead_segments, look
from postroad.pipeline.spark import find_java_home
from postroad.pipeline.spark.session import require_packages

from .board import ClearingBoard
from .books import ClearingBooks, ClearingCounts
from .clearing import BAD_EVERY, BANKS, JOB_FILE
from .clearing_verdict import ClearingEvidence, clearing_checks, clearing_items
from .mail_verdict import Absence
from .processes import DemoFailed
from .records import Clearing, Command, JobReport, Posting
from .screen import Table
from .stage import Stage
from .tables import CLEARING_HEADING, clearing_row, reconciliation_lines

CUSTOMER, HOUSE = "alpha", "beta"
# A JVM takes its time to start, on a busy machine much of it.
SPARK_TIMEOUT_S = 180.0
# What is still missing when nothing came for so long is taken for lost.
TIMEOUT_S = 60.0


async def require_spark() -> None:
    """Raise a PostroadError that says what is missing, if a job cannot run on Spark here."""
    require_packages()
    await asyncio.to_thread(find_java_home)


class ClearingAct:
    """One node posts payments, and a job of the other clears them, although that one is killed."""

    def __init__(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self._seconds = seconds
        self._board = ClearingBoard()
        self._store = str(stage.path(HOUSE, "clearing.db"))
        # Of processes that were killed, and of the one that runs.
        self._before = self._newest = JobReport()

    @property
    def title(self) -> str:
        """What is about to be seen."""
        return (
            f"{CUSTOMER} posts payments to {len(BANKS)} banks, one in {BAD_EVERY} of them bad;"
            f" a job of {HOUSE} clears them on Spark;\n"
            f"{HOUSE} is killed after {self._seconds / 2:.3g} s of that, and has to start Spark"
            " again"
        )

    async def play(self) -> bool:
        """Play it; True if everything adds up."""
        self._stage.path(HOUSE, "spark").mkdir()
        await self._start_house()
        await self._start_customer()
        with closing(ClearingBooks(self._stage.path(CUSTOMER, "clearing.db"))) as books:
            away, caught, resumed_s = await self._run(books)
            evidence = ClearingEvidence(
                posted=books.posted(),
                cleared=books.cleared(),
                totals=books.totals(),
                dead=await self._read_dead(),
                away=away,
                caught=caught,
                resumed_s=resumed_s,
            )
        found = clearing_checks(evidence)
        self._stage.screen.say(*reconciliation_lines(clearing_items(evidence), found))
        return all(check.holds for check in found)

    async def _run(self, books: ClearingBooks) -> tuple[Absence, int, float]:
        stage = self._stage
        async with stage.drawing(lambda: self._count(books)):
            stage.state(CUSTOMER, f"posts payments to {HOUSE}, and notes what comes back")
            await self._wait_for_spark()
            await stage.pass_until(time.monotonic() + self._seconds / 2)
            killed_s = await self._kill_house()
            standing = await look(JOB_FILE, self._store)
            returned_s = await self._bring_house_back(standing.pending)
            resumed_s = await self._wait_for_spark()
            self._board.note(f"{HOUSE} clears payments again", resumed_s)
            await stage.pass_until(time.monotonic() + self._seconds / 2)
            await self._wait_for_the_rest(books)
            await stage.stop(HOUSE, CUSTOMER)
        self._count(books)
        self._board.end()
        stage.screen.finish(self._make_table())
        away = Absence(name=HOUSE, killed_s=killed_s, returned_s=returned_s)
        return away, standing.pending, resumed_s

    # The nodes.

    async def _start_customer(self) -> None:
        task = Posting(
            peer=HOUSE,
            address=self._stage.address(HOUSE),
            store=str(self._stage.path(CUSTOMER, "clearing.db")),
        )
        await self._stage.start(CUSTOMER, task)

    async def _start_house(self) -> None:
        task = Clearing(
            peer=CUSTOMER,
            address=self._stage.address(CUSTOMER),
            store=self._store,
            place=str(self._stage.path(HOUSE, "spark")),
        )
        await self._stage.start(HOUSE, task, self._take)
        self._stage.state(HOUSE, "starts Spark")

    async def _kill_house(self) -> float:
        """Kill it in the middle of a batch; returns when it was gone."""
        before = self._newest.acked
        await self._stage.wait_for(lambda: self._has_begun_batch_after(before), TIMEOUT_S)
        await self._stage.kill(HOUSE)
        killed_s = time.monotonic()
        self._board.note(f"{HOUSE} was killed (SIGKILL), and Spark's JVM went with it", killed_s)
        return killed_s

    async def _bring_house_back(self, caught: int) -> float:
        """Start it again where it was; returns when it listened."""
        last, before = self._newest, self._before
        self._before = JobReport(
            acked=before.acked + last.acked, replayed=before.replayed + last.replayed + caught
        )
        self._newest = JobReport(pending=caught, dead=last.dead)
        self._stage.state(HOUSE, "starting again")
        await self._start_house()
        returned_s = time.monotonic()
        self._board.note(f"{HOUSE} is back and starts Spark, on the same checkpoint", returned_s)
        return returned_s

    def _has_begun_batch_after(self, acked: int) -> bool:
        return self._newest.acked > acked and self._newest.pending > 0

    def _take(self, report: JobReport) -> None:
        self._newest = report

    # Waiting.

    async def _wait_for_spark(self) -> float:
        """Until the process that runs has done something; returns when."""
        if not await self._stage.wait_for(lambda: self._newest.acked > 0, SPARK_TIMEOUT_S):
            raise DemoFailed(f"{HOUSE} cleared nothing within {SPARK_TIMEOUT_S:g} s")
        self._stage.state(HOUSE, "clears payments on Spark")
        return time.monotonic()

    async def _wait_for_the_rest(self, books: ClearingBooks) -> None:
        """Until nothing is posted any more, and each payment has come to an end."""
        stage = self._stage
        stage.tell(CUSTOMER, Command.REST)
        stage.state(CUSTOMER, "waits for the last payments")
        await stage.wait_for(lambda: stage.is_resting(CUSTOMER), TIMEOUT_S)
        while left := self._look(books).waiting:
            if not await stage.wait_for(lambda: self._look(books).waiting < left, TIMEOUT_S):
                return
        await stage.wait_for(lambda: books.totals() == books.cleared_by_bank(), TIMEOUT_S)

    # What is seen.

    def _look(self, books: ClearingBooks) -> ClearingCounts:
        posted, cleared = books.count()
        return ClearingCounts(
            at_s=time.monotonic(),
            posted=posted,
            cleared=cleared,
            acked=self._before.acked + self._newest.acked,
            pending=self._newest.pending,
            replayed=self._before.replayed + self._newest.replayed,
            dead=self._newest.dead,
        )

    def _count(self, books: ClearingBooks) -> Table:
        self._board.add(self._look(books))
        return self._make_table()

    def _make_table(self) -> Table:
        return Table(
            nodes=self._stage.nodes,
            heading=CLEARING_HEADING,
            rows=[clearing_row(row) for row in self._board.rows],
            log=self._stage.last_log_line(),
        )

    async def _read_dead(self) -> list[tuple[int, str]]:
        count = await count_dead(JOB_FILE, self._store)
        dead = await dead_segments(JOB_FILE, self._store, count)
        return [(_number_of(it.segment), it.error) for it in dead]


def _number_of(segment: Any) -> int:
    return int(segment["number"])
