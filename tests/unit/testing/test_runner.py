"""Scenarios over seeds, as users run their own."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.testing import (
    LivenessFailure,
    SafetyFailure,
    SimCluster,
    SimNode,
    Simulation,
    main,
    run_seed,
)
from postroad.testing.simulation.runner import STOPPED
from tests.support.source_tree import ROOT

USER_PROGRAM = """
import sys
from postroad.testing import main, require

def tell(simulation):
    simulation.log.add("user", "says", "hello")
    require(simulation.seed != 2, "all is well")

if __name__ == "__main__":
    sys.exit(main({"first": lambda simulation: None, "tell": tell}))
"""


async def crash(node: SimNode) -> None:
    raise KeyError("planted")


def run_crashing_node(simulation: Simulation) -> None:
    with SimCluster(simulation) as sim:
        sim.run_for(5.0)
        sim.add("alpha", crash).start()
        sim.run_for(5.0)


def test_outcome_of_a_cluster_that_crashes() -> None:
    outcome = run_seed("crash", run_crashing_node, 4, program="python -m mine")
    assert (outcome.exit_code, outcome.virtual_s) == (127, 5.0)
    assert outcome.actions > 0
    description = outcome.describe()
    assert "crash: KeyError('planted')" in description
    assert "raised by the program of node 'alpha'" in description
    assert "    5.000000  alpha     started" in description
    assert description.endswith("replay  python -m mine --only crash --seeds 1 --first-seed 4")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (LivenessFailure("late"), 128),
        (SafetyFailure("wrong"), 129),
        (ValueError("x"), 127),
        (asyncio.CancelledError(), 127),
        (SystemExit(3), 127),
    ],
)
def test_exit_codes(error: BaseException, exit_code: int) -> None:
    def scenario(simulation: Simulation) -> None:
        raise error

    assert run_seed("it", scenario, 1).exit_code == exit_code
    assert main({"it": scenario}, ["--seeds", "1"]) == exit_code


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    def scenario(simulation: Simulation) -> None:
        raise KeyboardInterrupt

    assert main({"it": scenario}, []) == STOPPED
    assert "stopped" in capsys.readouterr().out


def test_log_of_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    def scenario(simulation: Simulation) -> None:
        simulation.log.add("it", "ran", str(simulation.seed))

    assert main({"it": scenario}, ["--seeds", "2", "--first-seed", "7", "--log"]) == 0
    out = capsys.readouterr().out
    assert "it        ran         7" in out
    assert "it        ran         8" in out


def start(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(directory)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_program_of_a_user(tmp_path: Path) -> None:
    package = tmp_path / "mytests" / "simulation"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").write_text("")
    (package / "__main__.py").write_text(USER_PROGRAM)
    (tmp_path / "script.py").write_text(USER_PROGRAM)

    done = start(tmp_path, "-m", "mytests.simulation", "--seeds", "5")
    assert done.returncode == 129
    assert "first       seeds 0 to 4  ok" in done.stdout
    assert "safety: all is well" in done.stdout
    replay = done.stdout.splitlines()[-1].removeprefix("replay  python ")
    assert replay == "-m mytests.simulation --only tell --seeds 1 --first-seed 2"
    again = start(tmp_path, *replay.split())
    assert again.returncode == 129

    output = start(tmp_path, "script.py", "--only", "tell", "--first-seed", "2").stdout
    assert "replay  python script.py --only tell --seeds 1 --first-seed 2" in output
