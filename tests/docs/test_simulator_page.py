"""The example of the simulator's page: it passes, and finds the fault that the page plants."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, files_of

PAGE = "simulator.md"
PROGRAM = "simulate_counter.py"
SAFE_LINE = "        self._files.sync()\n"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    for name, text in files_of(PAGE).items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def faulty_example(example: Path) -> Path:
    counter = example / "counter.py"
    text = counter.read_text()
    assert text.count(SAFE_LINE) == 1
    counter.write_text(text.replace(SAFE_LINE, ""))
    return example


def run(
    directory: Path, *arguments: str, hash_seed: str = "random"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    return run(directory, "-m", "pytest", *quiet, *arguments)


def test_the_program_passes(example: Path) -> None:
    done = run(example, PROGRAM, "--seeds", "5")
    assert done.returncode == 0, done.stdout
    assert "seeds 0 to 4  ok" in done.stdout


def test_the_planted_fault_is_found_and_replayed(faulty_example: Path) -> None:
    found = run(faulty_example, PROGRAM, hash_seed="1")
    assert found.returncode == 129, found.stdout
    assert "safety: " in found.stdout
    *_, last = found.stdout.splitlines()
    replay, _, command = last.partition("  python ")
    assert replay == "replay"

    again = run(faulty_example, *shlex.split(command), hash_seed="2")
    assert (again.returncode, again.stdout) == (129, found.stdout)
    # As the page shows it.
    assert f"{found.stdout}$ echo $?\n129\n" in (ROOT / "docs" / PAGE).read_text()


def test_the_tests_pass(example: Path) -> None:
    done = run_pytest(example)
    assert done.returncode == 0, done.stdout


def test_the_tests_find_the_planted_fault(faulty_example: Path) -> None:
    done = run_pytest(faulty_example)
    assert done.returncode == 1, done.stdout
    assert f"replay  python {PROGRAM} --only troubled" in done.stdout


def test_a_failed_test_of_the_fixture_tells_its_seed(faulty_example: Path) -> None:
    chosen = ("-k", "survives", "--sim-seed")
    failed = (run_pytest(faulty_example, *chosen, str(seed)) for seed in range(5))
    report = next(done.stdout for done in failed if done.returncode)
    assert "simulation with seed" in report
    assert "unsynced changes are gone" in report
    assert "to run it again" in report
