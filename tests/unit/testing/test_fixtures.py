"""The fixtures as users get them: in a project of their own, run by pytest."""

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
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest('pytest_plugins = ["postroad.testing.fixtures"]')
    pytester.makepyfile(test_mine=TESTS)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> str:
    done = project.runpytest_subprocess("-p", "no:cacheprovider", "-rA", *arguments)
    return str(done.stdout)


def drawn(output: str) -> str:
    """The seed of a test and what it drew with it."""
    (line,) = re.findall(r"seed \d+ 0\.\d+", output)
    return str(line)


@pytest.mark.slow
def test_fixture_failure_reports_seed_log_and_replay_command(project: pytest.Pytester) -> None:
    first = run(project)
    assert "2 passed" in first
    assert "1 failed" in first
    assert "    0.000000  alpha     started     start 1, 10.0.0.1" in first
    (command,) = re.findall(r"python -m (pytest '.*' --sim-seed \d+)", first)
    assert "test_mine.py::test_failing" in command
    seed = command.split()[-1]
    assert f"simulation with seed {seed}" in first
    # The seed follows from the name of the test, or from the option.
    assert drawn(run(project, "-k", "test_seed")) == drawn(first)
    again = run(project, "-k", "test_failing or test_seed", "--sim-seed", seed)
    assert f"simulation with seed {seed}" in again
    assert drawn(again).startswith(f"seed {seed} ")
    assert drawn(again) != drawn(first)


@pytest.mark.parametrize(
    ("imported", "absent"), [("postroad", "postroad.testing"), ("postroad.testing", "pytest")]
)
def test_nothing_is_loaded_before_it_is_used(imported: str, absent: str) -> None:
    source = f"import sys, {imported}; print({absent!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
