"""Calls and events between two nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.nats import running_nats
from benchmarks.servers import free_ports
from benchmarks.services import moleculer
from benchmarks.services.job import GROUPS, Job
from benchmarks.services.nodes import client, serve

if TYPE_CHECKING:
    from benchmarks.harness import Settings

IN_FLIGHT = (64, 512)
GOALS = {"tcp": 2.0, "nats": 2.0, "cells": 3.0}
EVENTS_AT_ONCE = 64


def call_sections(settings: Settings) -> list[Section]:
    """Calls over each transporter, few and many at once."""
    return [_calls(settings, in_flight) for in_flight in IN_FLIGHT]


def event_section(settings: Settings) -> Section:
    """Events that ten groups of another node hear."""
    contenders, comparisons = [], []
    case = f"event for {GROUPS} groups of another node"
    for name in ("tcp", "nats"):
        job = partial(_job, settings, name, EVENTS_AT_ONCE, workload="event")
        ours, theirs = f"postroad, {name}", f"Moleculer JS, {name}"
        contenders += [
            Contender(ours, partial(_sample, job, _ours)),
            Contender(theirs, partial(_sample, job, moleculer.sample)),
        ]
        comparisons.append(Comparison(f"{case}, {name}", ours, theirs))
    return Section(
        title=case, unit="events heard/s", contenders=contenders, comparisons=comparisons
    )


def _calls(settings: Settings, in_flight: int) -> Section:
    case = f"call of another node, {in_flight} in flight"
    contenders, comparisons = [], []
    for name, goal in GOALS.items():
        job = partial(_job, settings, name, in_flight)
        ours = f"postroad, {name}"
        contenders.append(Contender(ours, partial(_sample, job, _ours)))
        # Nobody else speaks to cells: these are held against the fastest way Moleculer has.
        theirs = f"Moleculer JS, {'tcp' if name == 'cells' else name}"
        if name != "cells":
            contenders.append(Contender(theirs, partial(_sample, job, moleculer.sample)))
        comparisons.append(Comparison(f"{case}, {name}", ours, theirs, goal=goal))
    return Section(title=case, unit="calls/s", contenders=contenders, comparisons=comparisons)


def _job(
    settings: Settings, transporter: str, in_flight: int, address: str, *, workload: str = "call"
) -> Job:
    return Job(
        transporter=transporter,
        address=address,
        loop=settings.loop,
        seconds=settings.seconds,
        warmup_s=max(settings.warmup_s, 1.0),
        in_flight=in_flight,
        workload=workload,
    )


def _sample(job: Callable[[str], Job], measure: Callable[[Job], float]) -> float:
    """Take a sample, with a server for the transporter where it needs one."""
    if job("").transporter != "nats":
        return measure(job(",".join(map(str, free_ports(2)))))
    with TemporaryDirectory() as directory, running_nats(Path(directory)) as url:
        return measure(job(url.removeprefix("nats://")))


def _ours(job: Job) -> float:
    with running(serve, job) as server:
        server.receive()
        with running(client, job) as caller:
            return float(caller.receive(60.0 + job.warmup_s + job.seconds))
