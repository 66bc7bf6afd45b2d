"""`import postroad` stays light: it loads nothing that only some users need."""

import json
import subprocess
import sys

import pytest

ROUNDS = 5
RATIO_MAX = 1.6

BARE = "import asyncio, msgspec"
OURS = "import postroad"
LATE = ("click", "cryptography", "kazoo", "uvloop", "zstandard")


def fresh_interpreter(source: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True
    )
    return finished.stdout


def cpu_seconds(source: str) -> float:
    """Measure a whole process, start of the interpreter included."""
    return float(fresh_interpreter(f"{source}\nimport time; print(time.process_time())"))


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    listed = fresh_interpreter(f"{OURS}\nimport json, sys; print(json.dumps(sorted(sys.modules)))")
    names: list[str] = json.loads(listed)
    return names


@pytest.mark.parametrize("library", LATE)
def test_library_is_loaded_only_when_used(loaded: list[str], library: str) -> None:
    assert [name for name in loaded if name.partition(".")[0] == library] == []


@pytest.mark.parametrize("package", ["postroad.admin", "postroad.cli"])
def test_what_operators_use_is_loaded_only_when_used(loaded: list[str], package: str) -> None:
    assert [name for name in loaded if f"{name}.".startswith(f"{package}.")] == []


def test_import_costs_little_more_than_what_it_stands_on() -> None:
    cpu_seconds(OURS)  # The first import may have to compile.
    rounds = [(cpu_seconds(BARE), cpu_seconds(OURS)) for _ in range(ROUNDS)]
    # The least, because whatever else the machine does only adds.
    bare, ours = (min(column) for column in zip(*rounds, strict=True))

    assert ours / bare <= RATIO_MAX, f"{ours * 1000:.0f} ms CPU against {bare * 1000:.0f} ms"
