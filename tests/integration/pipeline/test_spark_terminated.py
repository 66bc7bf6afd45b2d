"""A program with a job on Spark that is terminated together with its JVM, as services are."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.spark import QUICK_JAVA
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.timeout(600)

PROGRAM_S = 150.0

PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from postroad import run
from postroad.durable import MemoryStore
from postroad.pipeline import SeqOutput, new_job
from postroad.pipeline.spark import SparkRunner, SparkSettings
from tests.support.pipeline.spark_kill_functions import GrowingLines

async def main(place):
    (place / "first.jsonl").write_text('{"n": 1}')
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


KILLING = PROGRAM.replace(
    "os.killpg(0, signal.SIGTERM)\n    await running",
    """jvm = SparkContext._gateway.proc
    jvm.kill()
    (place / "later.jsonl").write_text('{"n": 2}')
    # The first batch may come again, before that of the later line.
    while len(outputs["out"].segments) < 2:
        await asyncio.sleep(0.05)
    assert sorted(segment["n"] for segment in outputs["out"].segments) == [1, 2]
    assert SparkContext._gateway.proc is not jvm
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    print("it went on")""",
).replace(
    "from postroad import run\n", "from pyspark import SparkContext\nfrom postroad import run\n"
)


def test_job_goes_on_in_another_jvm_when_its_own_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLING, str(tmp_path), QUICK_JAVA, str(ROOT)]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_S, check=False, cwd=ROOT
    )
    assert (finished.returncode, finished.stdout) == (0, "it went on\n"), finished.stderr
