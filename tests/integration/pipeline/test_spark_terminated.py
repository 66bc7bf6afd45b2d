"""A program with a job on Spark that is terminated together with its JVM, as services are."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.spark import QUICK_JAVA
from tests.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PROGRAM_S = 150.0

PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from postroad import run
from postroad.durable import MemoryStore
from postroad.pipeline import SeqOutput, new_job
from postroad.pipeline.spark import SparkRunner, SparkSettings
from tests.spark_kill_functions import GrowingLines

async def main(place):
    (place / "some.jsonl").write_text('{"n": 1}')
    job = new_job("endless").input("in", medium="lines").output("out", medium="seq").build()
    settings = SparkSettings(
        driver_memory="512m", java_options=sys.argv[2], python_path=(sys.argv[3],)
    )
    inputs, outputs = {"in": GrowingLines(str(place))}, {"out": SeqOutput()}
    runner = SparkRunner(job, inputs, outputs, MemoryStore(), place / "spark", settings)
    running = asyncio.create_task(runner.run())
    while not runner.desk.counts.batches:
        await asyncio.sleep(0.05)
    os.killpg(0, signal.SIGTERM)
    await running

run(main(Path(sys.argv[1])))
"""


def test_job_ends_as_it_should_when_its_jvm_is_terminated_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), QUICK_JAVA, str(ROOT)]
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        cwd=ROOT,
        start_new_session=True,
    )
    assert finished.returncode == 128 + signal.SIGTERM
    assert "unhandled exception" not in finished.stderr
