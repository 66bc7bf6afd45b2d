"""Moleculer's processes, from npm."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks.harness import BenchmarkFailed
from benchmarks.npm import NpmFailed, install
from benchmarks.services.job import GROUPS, Job

PACKAGES = {"moleculer": "0.15.2", "nats": "2.29.3"}
SAYS_S = 60.0

_SCRIPT = Path(__file__).with_name("moleculer.js")
_PLACE = Path(__file__).parents[1] / "out" / "npm"


def sample(job: Job) -> float:
    """Start a server and a client, take one measurement, end them."""
    modules = _installed()
    with _node("serve", job, modules) as server:
        if _said(server, SAYS_S) != "ready":
            raise BenchmarkFailed("Moleculer does not start")
        with _node("client", job, modules) as client:
            return float(_said(client, SAYS_S + job.warmup_s + job.seconds))


def _installed() -> Path:
    try:
        return install(PACKAGES, _PLACE)
    except NpmFailed as error:
        raise BenchmarkFailed(str(error)) from None


@contextmanager
def _node(role: str, job: Job, modules: Path) -> Iterator[subprocess.Popen[str]]:
    told = {
        "transporter": job.transporter,
        "address": job.address,
        "inFlight": job.in_flight,
        "seconds": job.seconds,
        "warmup": job.warmup_s,
        "workload": job.workload,
        "groups": GROUPS,
    }
    process = subprocess.Popen(
        ["node", str(_SCRIPT), role, json.dumps(told)],
        env={**os.environ, "NODE_PATH": str(modules)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _said(process: subprocess.Popen[str], timeout_s: float) -> Any:
    pipe = process.stdout
    assert pipe is not None
    line = _line(pipe, timeout_s)
    if not line:
        raise BenchmarkFailed(f"Moleculer said nothing for {timeout_s:g} s, or ended")
    return json.loads(line)


def _line(pipe: IO[str], timeout_s: float) -> str:
    ready, _, _ = select.select([pipe], [], [], timeout_s)
    return pipe.readline() if ready else ""
