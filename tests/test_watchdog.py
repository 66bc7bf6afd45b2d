"""Tests that hang, or take long without saying so, seen from a run of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

HANGING = """
import asyncio, ctypes, threading, time, pytest

pytestmark = pytest.mark.timeout(0.5)

async def test_awaits_forever():
    await wait_for_nobody()

async def wait_for_nobody():
    await asyncio.Event().wait()

def test_holds_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

async def test_swallows_its_cancellation():
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            pass

def test_lets_no_other_thread_run():
    ctypes.PyDLL(None).sleep(100)

def test_after_them():
    pass
"""
SLOW = """
import time, pytest

def test_slow():
    time.sleep(0.2)

@pytest.mark.slow
def test_marked():
    time.sleep(0.2)
"""
PLUGINS = """
import pytest
from tests.support import watchdog
from tests.support.slowness import Slowness

watchdog.GRACE_S = 0.5

def pytest_configure(config):
    config.pluginmanager.register(watchdog.Watchdog())
    config.pluginmanager.register(Slowness(limit_s=0.1))

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return watchdog.Scheduling(config, log)
"""
SETTINGS = """
[pytest]
asyncio_mode = auto
markers =
    slow
    timeout
"""


# To import all others takes longer than these runs.
ALONE = ("-p", "xdist.plugin", "-p", "xdist.looponfail", "-p", "pytest_asyncio.plugin")


def run_pytest(
    directory: Path, source: str, *arguments: str, plugins: str = PLUGINS
) -> subprocess.CompletedProcess[str]:
    (directory / "test_planted.py").write_text(source)
    (directory / "conftest.py").write_text(plugins)
    (directory / "pytest.ini").write_text(SETTINGS)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *ALONE, *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_tests_that_hang_fail_alone_and_show_where_they_stood(tmp_path: Path) -> None:
    arguments = ("-n1", "--dist=loadfile", "--max-worker-restart=4")
    finished = run_pytest(tmp_path, HANGING, *arguments)
    failed = set(re.findall(r"^FAILED test_planted.py::(\w+)", finished.stdout, re.MULTILINE))
    assert failed == set(re.findall(r"def (test_\w+)", HANGING)) - {"test_after_them"}
    assert "1 passed" in finished.stdout
    assert "await wait_for_nobody()" in finished.stdout
    assert "await asyncio.Event().wait()" in finished.stdout
    assert "lock.acquire()" in finished.stdout
    assert "test_swallows_its_cancellation cannot be stopped" in finished.stderr
    assert finished.returncode == 1


ENDING = """
import os

def test_ends_its_process():
    os._exit(1)

def test_after_it():
    pass
"""


@pytest.mark.slow
def test_run_ends_when_a_process_ended_after_whole_files(tmp_path: Path) -> None:
    (tmp_path / "test_before.py").write_text("def test_before_it():\n    pass\n")
    finished = run_pytest(tmp_path, ENDING, "-n1", "--dist=loadfile", "--max-worker-restart=4")
    assert "1 failed, 2 passed" in finished.stdout
    assert finished.returncode == 1


@pytest.mark.slow
def test_slow_test_without_a_marker_fails_the_run(tmp_path: Path) -> None:
    finished = run_pytest(tmp_path, SLOW)
    assert "2 passed" in finished.stdout
    assert "TOO SLOW test_planted.py::test_slow" in finished.stdout
    assert "test_marked" not in finished.stdout
    assert finished.returncode == 1


@pytest.mark.slow
def test_slow_test_without_a_marker_is_only_named_where_the_speed_is_not_known(
    tmp_path: Path,
) -> None:
    plugins = PLUGINS.replace("Slowness(", "Slowness(fails_the_run=False, ")
    finished = run_pytest(tmp_path, SLOW, plugins=plugins)
    assert "TOO SLOW test_planted.py::test_slow" in finished.stdout
    assert finished.returncode == 0
