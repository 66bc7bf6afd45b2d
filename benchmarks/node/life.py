"""A node with everything embedded: from its command to being ready, and then at rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING

from benchmarks.harness import BenchmarkFailed, Comparison, Contender, Section
from postroad import PostroadError
from postroad.admin.client import Client, find_nodes

if TYPE_CHECKING:
    from benchmarks.harness import Settings

START_S_MAX = 1.5
IDLE_PERCENT_MAX = 1.0
MEMORY_MIB_MAX = 120.0

TIMEOUT_S = 60.0
IDLE_S = 10.0
LOOK_S = 0.01
# After its start a node is busy with itself for a moment.
CALM_S = 2.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def sections(settings: Settings) -> list[Section]:
    """Three figures, each against its budget."""
    idle_s = IDLE_S if settings.rounds > 1 else 1.0
    return [
        _section("a node starts: from its command to being ready", "s", _start, START_S_MAX),
        _section("a node at rest", "% of a core", partial(_idle, idle_s), IDLE_PERCENT_MAX),
        _section("a node at rest: memory", "MiB", _memory, MEMORY_MIB_MAX),
    ]


def _section(case: str, unit: str, measure: object, budget: float) -> Section:
    assert callable(measure)
    return Section(
        case,
        unit,
        [Contender("postroad", measure)],
        [Comparison(case, "postroad", "budget", 1.0, at_most=True, budget=budget)],
        rounds_max=3,
    )


@contextmanager
def _node() -> Iterator[tuple[int, float]]:
    """A node that runs; its process, and how long it took to be ready."""
    with TemporaryDirectory() as data:
        settings = (f"node.data={data}", "node.name=alpha", "admin.bind=127.0.0.1:0")
        flags = [part for it in settings for part in ("--set", it)]
        began_s = monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "postroad", "node", "start", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=data,
        )
        try:
            yield process.pid, _wait_ready(Path(data), process, began_s)
        finally:
            process.kill()
            process.communicate()


def _wait_ready(data: Path, process: subprocess.Popen[bytes], began_s: float) -> float:
    while monotonic() < began_s + TIMEOUT_S:
        if process.poll() is not None:
            raise BenchmarkFailed(f"the node ended: {process.communicate()[1].decode()[-500:]}")
        for card in find_nodes(data):
            try:
                with Client.of(card, data) as client:
                    if client.call("node.health", is_read=True)["is_ready"]:
                        return monotonic() - began_s
            except PostroadError:
                break
        sleep(LOOK_S)
    raise BenchmarkFailed(f"the node was not ready in {TIMEOUT_S:g} s")


def _start() -> float:
    with _node() as (_, took_s):
        return took_s


def _idle(seconds: float) -> float:
    with _node() as (pid, _):
        sleep(CALM_S)
        before = _cpu_s(pid)
        sleep(seconds)
        return (_cpu_s(pid) - before) / seconds * 100


def _memory() -> float:
    with _node() as (pid, _):
        sleep(CALM_S)
        return median([_resident_mib(pid) for _ in range(3)])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
