"""Sessions that end badly, in a process of their own: Ctrl-C, a killed JVM, a missing package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.servers.spark import QUICK_JAVA

pytestmark = pytest.mark.timeout(600)

PROGRAM_S = 150.0
"""For three sessions on a busy machine; far less than the interrupted job would take."""

INTERRUPTED = """
import os, signal, sys, threading, time
from postroad.pipeline.spark import SparkSettings, spark_session

ENDLESS = 10**18
settings = SparkSettings(driver_memory="512m", java_options=sys.argv[1])
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

WITHOUT_ARROW = """
import sys
sys.modules["pyarrow"] = None
from postroad.pipeline.spark import start_spark
start_spark()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)


def test_next_session_works_whatever_became_of_the_one_before() -> None:
    finished = run(INTERRUPTED, QUICK_JAVA)

    told = ["cancelled False True", "interrupted 0 True", "counted 5", "killed -9 True"]
    assert finished.stdout.splitlines() == told, finished.stderr
    assert finished.returncode == 0


def test_missing_package_is_told_with_the_extra() -> None:
    finished = run(WITHOUT_ARROW)

    assert 'pip install "postroad[spark]"' in finished.stderr.splitlines()[-1]
