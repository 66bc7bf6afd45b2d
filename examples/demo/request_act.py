"""The first part: steady requests, a kill, a return, the reconciliation."""

from __future__ import annotations

import time

from .board import TrafficBoard
from .processes import DemoFailed
from .records import Answering, Calling
from .screen import Table
from .stage import Stage
from .tables import TRAFFIC_HEADING, reconciliation_lines, traffic_foot, traffic_row
from .tally import Tally
from .verdict import Evidence, checks, items

CALLER, PEER = "alpha", "beta"
TIMEOUT_S = 30.0
# Shares of the running time: the peer is killed after the first and started again after the second.
KILL_AT, RETURN_AT = 0.4, 0.55


class RequestAct:
    """One node calls another, which is killed and comes back."""

    def __init__(self, stage: Stage, seconds: float, callers: int, payload_bytes: int) -> None:
        self._stage = stage
        self._seconds = seconds
        self._callers = callers
        self._payload_bytes = payload_bytes
        self._board = TrafficBoard()

    @property
    def title(self) -> str:
        """What is about to be seen."""
        kill_s, return_s = self._seconds * KILL_AT, self._seconds * RETURN_AT
        return (
            f"{self._callers} callers, {self._payload_bytes}-byte requests, {self._seconds:g} s;"
            f" {PEER} is killed after {kill_s:.3g} s and started again after {return_s:.3g} s"
        )

    async def play(self) -> bool:
        """Play it; True if everything adds up."""
        Tally.create(self._stage.path(PEER, "tally"))
        await self._start_peer()
        await self._start_caller()
        evidence = await self._run()
        found = checks(evidence)
        self._stage.screen.say(*reconciliation_lines(items(evidence.totals), found))
        return all(check.holds for check in found)

    async def _run(self) -> Evidence:
        stage, seconds = self._stage, self._seconds
        started_s = time.monotonic()
        async with stage.drawing(self._make_table):
            stage.state(CALLER, f"calls {PEER}, {self._callers} requests at a time")
            stage.state(PEER, "answers")
            await stage.pass_until(started_s + seconds * KILL_AT)
            errors_before_kill = self._board.errors_met
            killed_s = await self._kill_peer()
            await stage.pass_until(started_s + seconds * RETURN_AT)
            returned_s = await self._bring_peer_back()
            await stage.pass_until(started_s + seconds)
            await self._wait_for_recovery(killed_s)
            # The caller first, which still needs its peer for what is in flight.
            await stage.stop(CALLER, PEER)
        self._board.end()
        stage.screen.finish(self._make_table())
        if self._board.newest is None:
            raise DemoFailed(f"{CALLER} reported nothing")
        return Evidence(
            totals=self._board.newest.totals,
            handled=Tally.read(stage.path(PEER, "tally")),
            errors_before_kill=errors_before_kill,
            reconnects=self._board.newest.reconnects,
            killed_s=killed_s,
            returned_s=returned_s,
        )

    async def _start_peer(self) -> None:
        await self._stage.start(PEER, Answering(tally=str(self._stage.path(PEER, "tally"))))

    async def _start_caller(self) -> None:
        task = Calling(
            peer=self._stage.address(PEER),
            callers=self._callers,
            payload_bytes=self._payload_bytes,
        )
        await self._stage.start(CALLER, task, self._board.add)

    async def _kill_peer(self) -> float:
        killed_s = time.monotonic()
        await self._stage.kill(PEER)
        self._board.note(f"{PEER} was killed (SIGKILL) in the middle of traffic", killed_s)
        return killed_s

    async def _bring_peer_back(self) -> float:
        """Start the peer again where it was; returns when it listened."""
        self._stage.state(PEER, "starting again")
        self._board.note(f"{PEER} is started again", time.monotonic())
        await self._start_peer()
        returned_s = time.monotonic()
        self._stage.state(PEER, "answers again")
        self._board.note(f"{PEER} listens on the same port again", returned_s)
        return returned_s

    async def _wait_for_recovery(self, killed_s: float) -> None:
        """Usually it is long over; a slow machine gets more time than it was given."""
        if not await self._stage.wait_for(lambda: self._has_recovered(killed_s), TIMEOUT_S):
            raise DemoFailed(f"no answer within {TIMEOUT_S:g} s after the return")

    def _has_recovered(self, killed_s: float) -> bool:
        newest = self._board.newest
        return newest is not None and newest.totals.gap_ended_s >= killed_s

    def _make_table(self) -> Table:
        return Table(
            nodes=self._stage.nodes,
            heading=TRAFFIC_HEADING,
            rows=[traffic_row(row) for row in self._board.rows],
            foot=traffic_foot(self._board),
            log=self._stage.last_log_line(),
        )
