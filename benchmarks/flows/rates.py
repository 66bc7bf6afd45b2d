"""Flows per second: of three local steps, and of two parties."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.flows import dbos, nodes
from benchmarks.flows.job import Job
from benchmarks.harness import Comparison, Contender, Section

if TYPE_CHECKING:
    from benchmarks.harness import Settings

AT_ONCE = 64
WARMUP_S = 1.0
# Some workflows of DBOS take seconds when many run: longer samples, fewer of them.
MANY_LONGER = 2.0
MANY_ROUNDS_MAX = 3

LOCAL, PAIR = "postroad, three local steps", "postroad, ping-pong"
PLAIN, READS = "postroad, three steps of a `def`", "postroad, three local reads"
# How many times as fast as each way of DBOS, and so as its best.
GOALS = {LOCAL: 5.0, PAIR: 3.5}
# A plain function may cost so much more than a coroutine, and reads must cost less than steps.
PLAIN_GOAL, READS_GOAL = 0.8, 1.2
# Its name in the table -> the way and the journal.
DBOS_ONE = {
    "DBOS, default journal": ("threads", "delete"),
    "DBOS, WAL": ("threads", "wal"),
}
DBOS_MANY = {
    "DBOS, threads, default journal": ("threads", "delete"),
    "DBOS, threads, WAL": ("threads", "wal"),
    "DBOS, start_workflow, WAL": ("start_workflow", "wal"),
    "DBOS, asyncio, WAL": ("asyncio", "wal"),
}


def sections(settings: Settings) -> list[Section]:
    """One flow after the other, and many at once."""
    one = Job(
        settings.loop,
        settings.scratch,
        seconds=settings.seconds,
        warmup_s=max(settings.warmup_s, WARMUP_S),
        at_once=1,
    )
    many = replace(one, seconds=MANY_LONGER * settings.seconds, at_once=AT_ONCE)
    return [
        _section("one after the other", one, DBOS_ONE),
        _section(f"{AT_ONCE} at once", many, DBOS_MANY, rounds_max=MANY_ROUNDS_MAX),
    ]


def _section(
    pace: str, job: Job, peers: dict[str, tuple[str, str]], rounds_max: int | None = None
) -> Section:
    cases = {
        LOCAL: f"flow of three local steps, {pace}",
        PAIR: f"ping-pong of two nodes, {pace}; of the peer three local steps",
    }
    return Section(
        title=f"flows, {pace}",
        unit="flows/s",
        contenders=[
            Contender(LOCAL, partial(nodes.measure_local, job)),
            Contender(PLAIN, partial(nodes.measure_local, job, "plain_steps")),
            Contender(READS, partial(nodes.measure_local, job, "three_reads")),
            Contender(PAIR, partial(nodes.measure_pair, job)),
            *(
                Contender(name, partial(dbos.measure, way, journal, job))
                for name, (way, journal) in peers.items()
            ),
        ],
        comparisons=[
            *(
                Comparison(case, ours, peer, goal=GOALS[ours])
                for ours, case in cases.items()
                for peer in peers
            ),
            Comparison(f"a plain `def`, {pace}", PLAIN, LOCAL, goal=PLAIN_GOAL),
            Comparison(f"reads, {pace}", READS, LOCAL, goal=READS_GOAL),
        ],
        rounds_max=rounds_max,
    )
