"""The program around the scenarios: seeds, exit codes, what a person reads, virtual time."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from postroad.testing import CorrectnessFailure, LivenessFailure, Simulation, Timeline
from tests.simulation.__main__ import main
from tests.simulation.scenarios import SCENARIOS, run_seed
from tests.support.source_tree import ROOT

PRINT_LOG_DIGEST = """
import hashlib, sys
from tests.simulation.scenarios import SCENARIOS, run_seed
for seed in range(5):
    log = run_seed(sys.argv[1], SCENARIOS[sys.argv[1]], seed).log
    print(hashlib.sha256(log.encode()).hexdigest())
"""


def fail_at_seed_3(error: Exception) -> Callable[[Simulation], None]:
    def scenario(simulation: Simulation) -> None:
        simulation.timeline.run(until=1.5)
        simulation.log.add("somebody", "did", "something")
        if simulation.seed == 3:
            raise error

    return scenario


@pytest.mark.parametrize(
    ("error", "exit_code", "kind"),
    [
        (KeyError("planted"), 127, "crash"),
        (LivenessFailure("planted"), 128, "liveness"),
        (CorrectnessFailure("planted"), 129, "correctness"),
    ],
)
def test_failure_tells_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    exit_code: int,
    kind: str,
) -> None:
    monkeypatch.setitem(SCENARIOS, "failing", fail_at_seed_3(error))

    assert main(["--only", "failing", "--seeds", "5"]) == exit_code
    told = capsys.readouterr().out
    assert "    1.500000  somebody  did         something" in told
    assert "seed 3" in told
    assert kind in told
    assert "python -m tests.simulation --only failing --seeds 1 --first-seed 3" in told


def test_success_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCENARIOS, "failing", fail_at_seed_3(KeyError()))

    assert main(["--only", "failing", "--seeds", "3", "--first-seed", "4"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("failing     seeds 4 to 6  ok")


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--seeds", "0"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCENARIOS)
def test_run_depends_on_nothing_but_its_seed(name: str) -> None:
    def digests(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PRINT_LOG_DIGEST, name]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    logs = [run_seed(name, SCENARIOS[name], seed).log for seed in range(5)]
    here = [hashlib.sha256(log.encode()).hexdigest() for log in logs]
    assert digests("1") == digests("2") == here
    assert len(set(here)) == len(here)


def test_actions_happen_in_the_order_of_their_moments() -> None:
    timeline = Timeline()
    happened: list[tuple[str, float]] = []
    for name, time in (("late", 2.0), ("early", 1.0), ("as early", 1.0), ("never", 9.0)):
        timeline.at(time, lambda name=name: happened.append((name, timeline.now)))  # type: ignore[misc]
    timeline.at(0.5, lambda: None).cancel()
    timeline.run(until=5.0)

    assert happened == [("early", 1.0), ("as early", 1.0), ("late", 2.0)]
    assert timeline.now == 5.0


def test_action_of_the_past_happens_now() -> None:
    timeline = Timeline()
    timeline.run(until=3.0)
    times: list[float] = []
    timeline.at(1.0, lambda: times.append(timeline.now))
    timeline.run(until=4.0)
    assert times == [3.0]
