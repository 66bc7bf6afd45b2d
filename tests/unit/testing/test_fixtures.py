"""The fixtures as users get them: in a project of their own, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import asyncio
import random

async def serve(node):
    await asyncio.Event().wait()

def test_cluster(sim, memory_network, manual_clock):
    assert memory_network is sim.network
    sim.add("alpha", serve).start()
    sim.run_for(1.0)
    manual_clock.advance(2.0)
    assert (sim.now, manual_clock()) == (1.0, 2.0)

def test_seed(sim):
    print("seed", sim.seed, random.random())

def test_failing(sim):
    sim.add("alpha", serve).start()
    sim.run_for(1.0)
    assert False, "planted"
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["postroad.testing.fixtures"]')
    pytester.makepyfile(test_mine=TESTS)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> str:
    done = project.runpytest_subprocess("-p", "no:cacheprovider", "-rA", *arguments)
    return str(done.stdout)


def test_failure_tells_seed_log_and_how_to_run_it_again(project: pytest.Pytester) -> None:
    told = run(project)
    assert "2 passed" in told
    assert "1 failed" in told
    assert "    0.000000  alpha     started     1st time, 10.0.0.1" in told
    (command,) = re.findall(r"python -m (pytest '.*' --sim-seed \d+)", told)
    seed = command.split()[-1]
    assert f"simulation with seed {seed}" in told
    again = run(project, "test_mine.py::test_failing", "--sim-seed", seed)
    assert f"simulation with seed {seed}" in again
    assert "test_mine.py::test_failing" in command


def test_seed_follows_from_the_name_or_the_option(project: pytest.Pytester) -> None:
    def seeds(*options: str) -> list[str]:
        return re.findall(r"seed \d+ 0\.\d+", run(project, "-k", "test_seed", *options))

    (own,) = seeds()
    assert seeds() == [own]
    (told,) = seeds("--sim-seed", "77")
    assert told.startswith("seed 77 ")
    assert told != own


@pytest.mark.parametrize(
    ("imported", "absent"),
    [("postroad", "postroad.testing"), ("postroad.testing", "pytest")],
)
def test_nothing_is_loaded_before_it_is_used(imported: str, absent: str) -> None:
    source = f"import sys, {imported}; print({absent!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
