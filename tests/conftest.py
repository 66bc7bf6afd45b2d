"""What holds for every test: the event loop, the hypothesis profiles, skips that may not happen.

Environment:
    POSTROAD_LOOP           "uvloop" (the default where it is installed) or "asyncio".
    POSTROAD_REQUIRE_ALL    "1" turns every skip into a failure; continuous integration sets it.
    POSTROAD_CHAOS_SECONDS  how long one chaos test goes on; `make chaos` sets it.
    TMPDIR                  where files go; if not set, into memory where there is enough of it.
"""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.event_loop import LoopFactory, loop_factory, loop_name
from tests.support.require_all import RequireAll

# A deadline per example fails on a busy machine, and pytest-timeout bounds the whole test anyway.
settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=5_000)
settings.load_profile("quick")

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


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_report_header() -> str:
    return f"event loop: {loop_name()}"


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
    return float(os.environ.get("POSTROAD_CHAOS_SECONDS", "3"))
