"""`import postroad` and `postroad --help` stay light: they load nothing that only some need."""

import json
import statistics
import subprocess
import sys

import pytest

ROUNDS = 5
RATIO_MAX = 1.6
# To a bare Python, which takes about 12 ms of CPU.
IMPORT_RATIO_MAX = 4.0
HELP_RATIO_MAX = 11.0

BARE = "import asyncio, msgspec"
NOTHING = ""
OURS = "import postroad"
USED = "from postroad.net import MessagingService"
HELP = "from postroad.cli.main import run; assert run(['--help']) == 0"
LATE = ("click", "cryptography", "kazoo", "uvloop", "zstandard")


def fresh_interpreter(source: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True
    )
    return finished.stdout


def cpu_seconds(source: str) -> float:
    """Measure a whole process, start of the interpreter included."""
    told = fresh_interpreter(f"{source}\nimport time; print(time.process_time())")
    return float(told.splitlines()[-1])


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    listed = fresh_interpreter(f"{USED}\nimport json, sys; print(json.dumps(sorted(sys.modules)))")
    names: list[str] = json.loads(listed)
    return names


@pytest.mark.parametrize("library", LATE)
def test_library_is_loaded_only_when_used(loaded: list[str], library: str) -> None:
    assert [name for name in loaded if name.partition(".")[0] == library] == []


@pytest.mark.parametrize("package", ["postroad.admin", "postroad.cli"])
def test_what_operators_use_is_loaded_only_when_used(loaded: list[str], package: str) -> None:
    assert [name for name in loaded if f"{name}.".startswith(f"{package}.")] == []


def test_import_costs_little_more_than_what_it_stands_on() -> None:
    cpu_seconds(USED)  # The first import may have to compile.
    rounds = [(cpu_seconds(BARE), cpu_seconds(USED)) for _ in range(ROUNDS)]
    # The least, because whatever else the machine does only adds.
    bare, ours = (min(column) for column in zip(*rounds, strict=True))

    assert ours / bare <= RATIO_MAX, f"{ours * 1000:.0f} ms CPU against {bare * 1000:.0f} ms"


@pytest.mark.parametrize(("source", "most"), [(OURS, IMPORT_RATIO_MAX), (HELP, HELP_RATIO_MAX)])
def test_it_begins_almost_as_soon_as_python(source: str, most: float) -> None:
    cpu_seconds(source)
    rounds = [(cpu_seconds(NOTHING), cpu_seconds(source)) for _ in range(ROUNDS)]
    bare, ours = (statistics.median(column) for column in zip(*rounds, strict=True))

    assert ours / bare <= most, f"{ours * 1000:.0f} ms CPU against {bare * 1000:.0f} ms"


def test_help_needs_no_layer_and_no_operations() -> None:
    listed = fresh_interpreter(f"{HELP}\nimport sys; print(*sorted(sys.modules))")
    names = listed.splitlines()[-1].split()
    above = ("admin", "cells", "cluster", "durable", "flows", "node", "pipeline", "services")
    assert [
        name for name in names if name.startswith(tuple(f"postroad.{it}" for it in above))
    ] == []
