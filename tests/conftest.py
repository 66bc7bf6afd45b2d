"""What holds for every test: its tier and markers, its time limit, the event loop, its chance.

Environment:
    POSTROAD_TIER           "quick", "test" or "nightly": see tests/support/tiers.py.
    POSTROAD_SEED           what all chance of the run is made from.
    POSTROAD_LOOP           "uvloop" (the default where it is installed) or "asyncio".
    POSTROAD_REQUIRE_ALL    "1" turns every skip into a failure; continuous integration sets it.
    POSTROAD_CHAOS_SECONDS  how long one chaos test goes on; `make chaos` sets it.
    POSTROAD_SLOW_MACHINE   "1" where the speed is not known: tests that take long are only named.
    TMPDIR                  where files go; if not set, into memory where there is enough of it.
"""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.event_loop import LoopFactory, loop_factory, loop_name
from tests.support.require_all import RequireAll
from tests.support.slowness import Slowness
from tests.support.tiers import SEED, TIER, Tier, by_tier, seed_for
from tests.support.watchdog import Scheduling, Watchdog

TESTS = Path(__file__).parent

# A deadline per example fails on a busy machine, and the watchdog bounds the whole test anyway.
# What is derandomized tries the same examples in every run.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=1_000, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile(TIER.value)

SHARED_MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
"""Several times what a whole run needs."""


def hear_interrupts() -> None:
    """Let Ctrl-C mean what it says in children, also when this run was begun in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_files_in_memory() -> None:
    """Spare stores and servers the disk: processes are killed in these tests, machines are not."""
    if "TMPDIR" in os.environ or not os.access(SHARED_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(SHARED_MEMORY).free >= MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(SHARED_MEMORY)
        # Asked before, it would stay with its first answer.
        tempfile.tempdir = None


def keep_bytecode() -> None:
    """Have a source compiled once, and not by each of the thousands of processes that tests start.

    Some machines forbid it for all programs.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


# Before tests are imported, and processes started that collect them too.
hear_interrupts()
keep_files_in_memory()
keep_bytecode()
# Thousands of tests come into being, and none of them goes.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("POSTROAD_REQUIRE_ALL") == "1":
        config.pluginmanager.register(RequireAll())
    is_slow_machine = os.environ.get("POSTROAD_SLOW_MACHINE") == "1"
    config.pluginmanager.register(Slowness(fails_the_run=not is_slow_machine))
    config.pluginmanager.register(Watchdog())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Keep loggers of PySpark from changing the format of what tests capture.

    Pytest adds its handlers to loggers that do not propagate, and PySpark's set the formatter of
    every handler that they are given: also within a test, between its fixtures and itself.
    """
    plugin: Any = item.config.pluginmanager.getplugin("logging-plugin")
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter(plugin.formatter)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and type(logger).__name__ == "PySparkLogger":
            logger.propagate = True


# By folder, from the tests on. Those of the first kind need seconds, and are begun first.
SLOW = ("chaos", "integration/spark", "integration/pipeline", "integration/test_demo.py", "browser",
        "simulation", "interop", "docs", "integration/cli", "deploy", "packaging")  # fmt: skip
REAL = ("browser", "chaos", "contract", "deploy", "docs", "integration", "interop", "packaging")
CHAOS = ("chaos",)
QUICK = ("property", "simulation", "test_", "unit")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Spare the quick tier what it has no use for: to import it takes seconds in each process."""
    path = collection_path.relative_to(TESTS).as_posix()
    is_quick = path == "." or _is_below(path, (*QUICK, "conftest.py"))
    return None if is_quick or TIER is not Tier.QUICK else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the markers that follow from where a test lies, and leave out other tiers' tests."""
    left_out = []
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        for marker, folders in (("slow", SLOW), ("integration", REAL), ("chaos", CHAOS)):
            if _is_below(path, folders):
                item.add_marker(marker)
        is_nightly = item.get_closest_marker("nightly") is not None
        is_quick = _is_below(path, QUICK)
        if (is_nightly and TIER is not Tier.NIGHTLY) or (TIER is Tier.QUICK and not is_quick):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        unwanted = set(left_out)
        items[:] = [item for item in items if item not in unwanted]
    # A long file that is begun last keeps one process busy while the others have nothing to do.
    items.sort(key=lambda it: not _is_below(it.path.relative_to(TESTS).as_posix(), SLOW))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return path.startswith(tuple(folders))


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_report_header() -> str:
    return f"tier: {TIER}, POSTROAD_SEED={SEED}, event loop: {loop_name()}"


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    name = loop_name()
    return {name: loop_factory(name)}


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> None:
    """Spare collections the modules and the thousands of tests: a simulation makes many of them.

    What the module before has left is collected first, so that it neither stays nor acts here.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    # The last collection, whose warnings are errors too, is of everything.
    gc.unfreeze()


@pytest.fixture
def chaos_seconds() -> float:
    """How long a chaos test goes on: a few seconds, unless `make chaos` asks for more."""
    return float(os.environ.get("POSTROAD_CHAOS_SECONDS") or by_tier(test=3, nightly=20))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of a test that takes chances; what fails once fails again with it."""
    return seed_for(request.node.nodeid)
