"""Sessions that end badly, in processes of their own: Ctrl-C, killed JVMs, a missing package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.servers.spark import QUICK_JAVA
from tests.support.servers.spark_classes import spark_home
from tests.support.source_tree import ROOT

PROGRAM_S = 240.0
"""For three sessions on a busy machine; far less than the interrupted query would take."""

INTERRUPTED = """
import os, signal, sys, threading, time
from postroad.pipeline.spark import SparkConfig, spark_session

ENDLESS = 10**18
settings = SparkConfig(driver_memory="512m", java_options=sys.argv[1])
before = dict(os.environ)

def interrupt_when(condition):
    while not condition():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)

def has_children():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True

try:
    is_starting = lambda: "PYSPARK_PYTHON" in os.environ and has_children()
    threading.Thread(target=interrupt_when, args=(is_starting,)).start()
    with spark_session(settings):
        print("started")
except KeyboardInterrupt:
    print("cancelled", has_children(), dict(os.environ) == before)

try:
    with spark_session(settings) as session:
        first = session.sparkContext._gateway.proc
        tracker = session.sparkContext.statusTracker()
        threading.Thread(target=interrupt_when, args=(tracker.getActiveStageIds,)).start()
        session.range(ENDLESS).selectExpr("max(hash(id))").collect()
except KeyboardInterrupt:
    print("interrupted", first.returncode, dict(os.environ) == before)

with spark_session(settings) as session:
    second = session.sparkContext._gateway.proc
    print("counted", session.range(5).count())
    second.kill()
    second.wait()
print("killed", second.returncode, dict(os.environ) == before)
"""

KILLED_AND_TERMINATED = """
import asyncio, os, signal, sys
from pathlib import Path
from pyspark import SparkContext
from postroad import run
from postroad.durable import MemoryStore
from postroad.pipeline import JsonLinesInput, MemoryOutput, new_job
from postroad.pipeline.spark import SparkRunner, SparkConfig

async def main(place):
    (place / "first.jsonl").write_text('{"n": 1}')
    builder = new_job("endless").input("in", connector="jsonl")
    job = builder.output("out", connector="memory").build()
    settings = SparkConfig(
        driver_memory="512m", java_options=sys.argv[1], python_path=(sys.argv[3],)
    )
    lines = JsonLinesInput(str(place / "*.jsonl"))
    lines.is_bounded = False
    inputs, outputs = {"in": lines}, {"out": MemoryOutput()}
    runner = SparkRunner(job, inputs, outputs, MemoryStore(), place / "spark", settings)
    running = asyncio.create_task(runner.run())
    while not runner.coordinator.counts.batches:
        await asyncio.sleep(0.05)
    jvm = SparkContext._gateway.proc
    jvm.kill()
    (place / "later.jsonl").write_text('{"n": 2}')
    # The first batch may come again, before that of the later line.
    while len(outputs["out"].segments) < 2:
        await asyncio.sleep(0.05)
    assert sorted(segment["n"] for segment in outputs["out"].segments) == [1, 2]
    assert SparkContext._gateway.proc is not jvm
    print("it goes on", flush=True)
    os.killpg(0, signal.SIGTERM)
    await running

run(main(Path(sys.argv[2])))
"""

WITHOUT_ARROW = """
import sys
sys.modules["pyarrow"] = None
from postroad.pipeline.spark import start_spark
start_spark()
"""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process group of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, QUICK_JAVA, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        cwd=ROOT,
        env=os.environ | {"SPARK_HOME": str(spark_home())},
        start_new_session=True,
    )


def test_next_session_works_whatever_became_of_the_one_before() -> None:
    finished = run(INTERRUPTED)

    lines = ["cancelled False True", "interrupted 0 True", "counted 5", "killed -9 True"]
    assert finished.stdout.splitlines() == lines, finished.stderr
    assert finished.returncode == 0


def test_job_goes_on_in_another_jvm_and_ends_quietly_when_that_is_terminated_with_it(
    tmp_path: Path,
) -> None:
    """Services are terminated as a whole group of processes."""
    finished = run(KILLED_AND_TERMINATED, tmp_path, ROOT)

    assert finished.stdout == "it goes on\n", finished.stderr
    assert finished.returncode == 128 + signal.SIGTERM
    assert "unhandled exception" not in finished.stderr


def test_missing_package_is_an_error_that_names_the_extra() -> None:
    finished = run(WITHOUT_ARROW)

    assert "pip install '.[spark]'" in finished.stderr.splitlines()[-1]
