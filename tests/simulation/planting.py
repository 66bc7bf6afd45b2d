"""What the tests of every scenario do: run seeds, and find the bugs that they plant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pytest

from postroad.testing import LivenessFailure, RunResult, SafetyFailure, shorten
from tests.simulation.scenarios import FIRST_SEED, SCENARIOS, run_seed
from tests.support.source_tree import ROOT
from tests.support.tiers import by_tier

CORRECTNESS = SafetyFailure.exit_code
LIVENESS = LivenessFailure.exit_code

_COUNT = by_tier(quick=3, test=20, nightly=200)
_AT_ONCE = 5
SEEDS = pytest.mark.parametrize(
    "seeds",
    [
        range(first, first + min(_AT_ONCE, _COUNT))
        for first in range(FIRST_SEED, FIRST_SEED + _COUNT, _AT_ONCE)
    ],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
"""For a test of several seeds."""
# Where another seed is looked for when the recorded one finds a bug no longer.
_MORE_SEEDS = range(100)
_LAST = ROOT / ".pytest_cache" / "planted"

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
"""Puts a bug into the program for the time of a test."""
PlantT = TypeVar("PlantT", bound=Plant)
ReplacementT = TypeVar("ReplacementT", bound=Callable[..., Any])


def run(scenario: str, seed: int) -> RunResult:
    return run_seed(scenario, SCENARIOS[scenario], seed)


def check_seeds(scenario: str, seeds: range) -> None:
    for seed in seeds:
        outcome = run(scenario, seed)
        if outcome.exit_code:
            pytest.fail(shorten(outcome, SCENARIOS[scenario]).describe(), pytrace=False)


class Bug(NamedTuple):
    """One that is planted, how a run ends that finds it, and the seed of such a run."""

    plant: Plant
    name: str
    exit_code: int
    seed: int

    def __str__(self) -> str:
        return self.name

    def check_found_by(self, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The recorded seed finds it; after a change of the program, one of the others may.

        That one is remembered on this machine, so that it is not looked for in every run.
        """
        self.plant(monkeypatch)
        outcomes = []
        last = _LAST / f"{scenario}-{self.name}"
        text = last.read_text() if last.exists() else ""
        remembered = [int(text)] if text.isdigit() else []
        for seed in (*remembered, self.seed, *_MORE_SEEDS):
            outcomes.append(run(scenario, seed).exit_code)
            if outcomes[-1] == self.exit_code:
                print(f"found by seed {seed}; {self.seed} is recorded")
                _LAST.mkdir(parents=True, exist_ok=True)
                last.write_text(str(seed))
                return
        pytest.fail(f"no seed found {self}; the exit codes were {outcomes}")


class Bugs(list[Bug]):
    """The bugs of a scenario, in a form that pytest takes as parameters."""

    def plant(self, exit_code: int, seed: int) -> Callable[[PlantT], PlantT]:
        """Add a function that plants a bug."""

        def add(function: PlantT) -> PlantT:
            self.append(Bug(function, function.__name__, exit_code, seed))
            return function

        return add

    def replace(
        self, owner: object, name: str, exit_code: int, seed: int
    ) -> Callable[[ReplacementT], ReplacementT]:
        """Add a function that stands in for a method, and is given the right one before `self`."""
        assert hasattr(owner, name), f"{owner} has no {name}, which a bug is to replace"

        def add(function: ReplacementT) -> ReplacementT:
            def plant(monkeypatch: pytest.MonkeyPatch) -> None:
                original = getattr(owner, name)
                monkeypatch.setattr(
                    owner, name, lambda *args, **named: function(original, *args, **named)
                )

            self.append(Bug(plant, function.__name__, exit_code, seed))
            return function

        return add
