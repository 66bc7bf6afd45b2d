"""What the tests of every scenario do: run seeds, and find the bugs that they plant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import pytest

from tests.simulation.scenarios import SCENARIOS, Outcome, run_seed

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
"""Puts a bug into the program for the time of a test."""
Run: TypeAlias = Callable[[int], Outcome]
"""Runs a scenario with a seed."""


def runner_of(scenario: str) -> Run:
    return partial(run_seed, scenario, SCENARIOS[scenario])


def check_passed(outcome: Outcome) -> None:
    assert outcome.exit_code == 0, outcome.describe()


def check_found(run: Run, seeds: Iterable[int], exit_code: int) -> None:
    """One of the seeds must end with that exit code; those before it may end with another."""
    found: list[int] = []
    for seed in seeds:
        outcome = run(seed)
        if outcome.exit_code == exit_code:
            return
        if outcome.exit_code:
            found.append(outcome.exit_code)
    pytest.fail(f"no seed found it; what they found: {found}")
