"""DBOS with SQLite, in each way a program can run many of its workflows.

It leaves the journal of SQLite as it finds it, so that a file which was put into WAL mode before
stays in it; commits are synced in both. A workflow costs it five of them: its start, each of the
three steps, its end. A smaller or larger pool of connections changes little here.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.flows.job import (
    Job,
    add_one,
    expect,
    flows_per_second,
    in_own_scratch,
    take_two,
    treble,
)
from benchmarks.messaging.processes import run

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.children import Announce

Complete = Callable[[int], None]


def measure(way: str, journal: str, job: Job) -> float:
    """Take one sample on an empty database.

    The ways are `threads` that call the workflow, or that wait for what `start_workflow` gave
    them, and tasks of `asyncio`, whose steps are asynchronous; the journals are those of SQLite.
    """
    with in_own_scratch(job) as job, running(run_workflows, way, journal, job) as child:
        return float(child.receive(job.timeout_s))


def run_workflows(announce: Announce, way: str, journal: str, job: Job) -> None:
    """Body of the process."""
    if way == "asyncio":
        announce(run(_run_tasks(job, journal), job.loop))
        return
    completes = {"threads": _called, "start_workflow": _started}
    complete = completes[way]()
    _launch(job.scratch, journal)
    announce(_run_threads(job, complete))


def _launch(scratch: Path, journal: str) -> None:
    from dbos import DBOS

    path = scratch / "dbos.db"
    sqlite3.connect(path).execute(f"PRAGMA journal_mode = {journal}").connection.close()
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": f"sqlite:///{path}",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()


def _three_steps() -> Callable[[int], int]:
    from dbos import DBOS

    first, second, third = (DBOS.step()(step) for step in (add_one, treble, take_two))

    def three_steps(number: int) -> int:
        return int(third(second(first(number))))

    workflow: Callable[[int], int] = DBOS.workflow()(three_steps)
    return workflow


def _called() -> Complete:
    workflow = _three_steps()

    def complete(number: int) -> None:
        expect(number, workflow(number))

    return complete


def _started() -> Complete:
    from dbos import DBOS

    workflow = _three_steps()

    def complete(number: int) -> None:
        expect(number, DBOS.start_workflow(workflow, number).get_result())

    return complete


def _run_threads(job: Job, complete: Complete) -> float:
    # Counters of the standard library give each number once, whatever thread asks.
    started, completed, is_over = count(1), count(), False

    def work() -> None:
        while not is_over:
            complete(next(started))
            next(completed)

    with ThreadPoolExecutor(job.at_once) as threads:
        workers = [threads.submit(work) for _ in range(job.at_once)]
        sleep(job.warmup_s)
        before, start = next(completed), perf_counter()
        sleep(job.seconds)
        rate = (next(completed) - before - 1) / (perf_counter() - start)
        is_over = True
        for worker in workers:
            worker.result()
    return rate


async def _run_tasks(job: Job, journal: str) -> float:
    complete = _awaited()
    await asyncio.to_thread(_launch, job.scratch, journal)
    return await flows_per_second(job, complete)


def _awaited() -> Callable[[int], Awaitable[None]]:
    from dbos import DBOS

    def step_of(function: Callable[[int], int]) -> Callable[[int], Awaitable[int]]:
        async def step(number: int) -> int:
            return function(number)

        decorated: Callable[[int], Awaitable[int]] = DBOS.step(name=function.__name__)(step)
        return decorated

    first, second, third = map(step_of, (add_one, treble, take_two))

    async def three_steps(number: int) -> int:
        return await third(await second(await first(number)))

    workflow: Callable[[int], Awaitable[int]] = DBOS.workflow()(three_steps)

    async def complete(number: int) -> None:
        expect(number, await workflow(number))

    return complete
