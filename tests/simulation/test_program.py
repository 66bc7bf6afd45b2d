"""The program around the scenarios: seeds, exit codes, what a person reads, virtual time."""

import hashlib
import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

from postroad.core.errors import UsageError
from postroad.testing import LivenessFailure, SafetyFailure, Simulation, Timeline, shorten
from postroad.testing.simulation.runner import format_keep, parse_keep
from tests.simulation.__main__ import main
from tests.simulation.planting import Bugs
from tests.simulation.scenarios import PROGRAM, SCENARIOS, run_seed
from tests.support.deadlines import DEADLINE_S
from tests.support.source_tree import ROOT
from tests.support.tiers import by_tier

PRINT_DIGESTS = """
import sys
from tests.simulation.test_program import digests_of
for name in sys.argv[2:]:
    print(*digests_of(name, int(sys.argv[1])))
"""
RUNS = by_tier(test=1, nightly=5)

# Bugs that are found early in a run, and by most runs.
QUICKLY_FOUND = {
    "wire": "plant_byte_lost_at_split",
    "cluster": "plant_properties_that_come_back",
    "hostile": "plant_belief_in_hearsay",
    "durable": "plant_forgotten_idempotency_keys",
    "flows": "plant_messages_in_memory",
    "cells": "plant_work_done_twice",
    "services": "plant_letters_sent_twice",
    "brokers": "plant_untyped_errors",
    "guaranteed": "plant_sent_on_before_acknowledged",
}


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
        (SafetyFailure("planted"), 129, "safety"),
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
    output = capsys.readouterr().out
    assert "    1.500000  somebody  did         something" in output
    assert "seed 3" in output
    assert kind in output
    assert "python -m tests.simulation --only failing --seeds 1 --first-seed 3" in output


def test_success_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCENARIOS, "failing", fail_at_seed_3(KeyError()))

    assert main(["--only", "failing", "--seeds", "3", "--first-seed", "4"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("failing     seeds 4 to 6  ok")


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--seeds", "0"], ["--keep", "?"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_first_seed_follows_from_postroad_seed() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--only", "wire", "--seeds", "1"]
    environment = {**os.environ, "POSTROAD_SEED": "7"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("wire        seeds 70000 to 70000  ok")


def digests_of(name: str, count: int) -> list[str]:
    logs = [run_seed(name, SCENARIOS[name], seed).log for seed in range(count)]
    return [hashlib.sha256(log.encode()).hexdigest() for log in logs]


def test_run_depends_on_nothing_but_its_seed() -> None:
    """Not on the process, and not on its hashes of strings."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with subprocess.Popen(
        [sys.executable, "-c", PRINT_DIGESTS, str(RUNS), *SCENARIOS],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        here = {name: digests_of(name, RUNS) for name in SCENARIOS}
        output, _ = other.communicate(timeout=DEADLINE_S * 4)
    assert [line.split() for line in output.splitlines()] == list(here.values())
    assert all(len(set(digests)) == RUNS for digests in here.values())


# Shorter runs.


def fail_with_two_faults(simulation: Simulation) -> None:
    """Needs both of them, one of many jobs and four seconds."""
    faults = simulation.optional("faults", "abcdefghijklmnop")
    early, late = (simulation.optional("jobs", range(30)) for _ in range(2))
    seconds = simulation.optional_s("seconds", 7.5)
    simulation.log.add("plan", "has", f"{faults} {early} {late} {seconds}")
    if {"c", "m"} <= set(faults) and 9 in late and seconds >= 4:
        raise SafetyFailure("planted")
    if "c" not in faults and "p" not in faults:
        raise SafetyFailure("another one")


def test_shortened_run_has_only_what_the_failure_needs() -> None:
    failed = run_seed("failing", fail_with_two_faults, 1)
    shortest = shorten(failed, fail_with_two_faults, tries=200)
    assert failed.optional_items == {"faults": 16, "jobs": 60, "seconds": 8}
    assert {name: len(indexes) for name, indexes in shortest.keep.items()} == {
        "faults": 2,
        "jobs": 1,
        "seconds": 5,
    }
    assert "['c', 'm'] [] [9] 4.5" in shortest.log
    assert "with seed 1, with 2 of 16 faults, 1 of 60 jobs, 5 of 8 seconds" in shortest.describe()
    assert shortest.replay_command.endswith("--keep 'faults=2,12 jobs=39 seconds=0-4'")
    # There is an end to it.
    assert shorten(failed, fail_with_two_faults, tries=0) is failed
    assert shorten(failed, fail_with_two_faults, seconds=0.0) is failed


def test_program_prints_the_shortened_run_and_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCENARIOS, "failing", fail_with_two_faults)
    assert main(["--only", "failing"]) == SafetyFailure.exit_code
    output = capsys.readouterr().out
    _, _, arguments = output.splitlines()[-1].partition(f"replay  {PROGRAM} ")
    assert main(shlex.split(arguments)) == SafetyFailure.exit_code
    assert capsys.readouterr().out == output


def test_keep_is_read_as_it_is_written() -> None:
    keep = {"faults": {0, 1, 2, 7, 9, 10}, "jobs": set[int](), "seconds": {3}}
    assert format_keep(keep) == "faults=0-2,7,9-10 jobs seconds=3"
    assert parse_keep(format_keep(keep)) == keep
    for wrong in ("faults=", "=1", "faults=1-", "faults=a"):
        with pytest.raises(UsageError):
            parse_keep(wrong)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_run_of_each_scenario_that_fails_is_shortened(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs: Bugs = importlib.import_module(f"tests.simulation.test_{scenario}").BUGS
    bug = next(bug for bug in bugs if bug.name == QUICKLY_FOUND[scenario])
    bug.plant(monkeypatch)
    failed = run_seed(scenario, SCENARIOS[scenario], bug.seed)
    shortest = shorten(failed, SCENARIOS[scenario], tries=4)
    assert failed.finding == shortest.finding
    assert shortest.exit_code == bug.exit_code
    kept_count = sum(map(len, shortest.keep.values()))
    assert kept_count < sum(failed.optional_items.values())
    again = run_seed(scenario, SCENARIOS[scenario], bug.seed, keep=shortest.keep)
    assert (again.log, again.reason) == (shortest.log, shortest.reason)


# Virtual time.


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
