"""Calls to cells: of the same domain, and of a satellite through a core."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.cells.domains import core, local, satellite_client, satellite_server
from benchmarks.children import running
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.job import Job
from benchmarks.messaging.peers import ours
from benchmarks.messaging.processes import sample

if TYPE_CHECKING:
    from benchmarks.harness import Settings

NEAR_GOAL = 150_000.0
IN_FLIGHT = 256


def near_section(settings: Settings) -> Section:
    """Calls from cell to cell within one domain, one after the other."""
    job = _job(settings, in_flight=1)
    case = "call of a cell of the same domain, 100 B"
    cells = "postroad cells"
    return Section(
        title=case,
        unit="calls/s",
        contenders=[Contender(cells, partial(_sample_local, job))],
        comparisons=[Comparison(case, cells, "goal", goal=1.0, budget=NEAR_GOAL)],
    )


def far_section(settings: Settings) -> Section:
    """Calls from satellite to core to satellite, against plain requests between two nodes."""
    job = _job(settings, in_flight=IN_FLIGHT)
    case = f"satellite to core to satellite and back, {IN_FLIGHT} in flight"
    cells, plain = "postroad cells, three processes", "postroad net, two processes"
    return Section(
        title=case,
        unit="requests/s",
        contenders=[
            Contender(cells, partial(_sample_far, job)),
            Contender(plain, partial(sample, ours, job)),
        ],
        comparisons=[Comparison(case, cells, plain, goal=0.4)],
    )


def _job(settings: Settings, *, in_flight: int) -> Job:
    job = Job("rate", settings.loop, settings.seconds, settings.warmup_s, settings.scratch)
    return replace(job, in_flight=in_flight)


def _sample_local(job: Job) -> float:
    with running(local, job) as child:
        return float(child.receive(60.0 + job.warmup_s + job.seconds))


def _sample_far(job: Job) -> float:
    with ExitStack() as stack:
        address = stack.enter_context(running(core, job)).receive()
        stack.enter_context(running(satellite_server, job, address)).receive()
        client = stack.enter_context(running(satellite_client, job, address))
        return float(client.receive(60.0 + job.warmup_s + job.seconds))
