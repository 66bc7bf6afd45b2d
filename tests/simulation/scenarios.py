"""The scenarios by name, and how one of them is run with a seed."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from tests.simulation.context import Scenario, Simulation
from tests.simulation.failures import CRASH, SimulationFailure
from tests.simulation.wire.scenario import run_wire


class Outcome(NamedTuple):
    """How a run ended. `exit_code` is 0 when all went well."""

    name: str
    seed: int
    exit_code: int
    reason: str
    log: str
    actions: int
    virtual_s: float

    @property
    def replay_command(self) -> str:
        """What a person types to see this run again."""
        return f"python -m tests.simulation --only {self.name} --seeds 1 --first-seed {self.seed}"

    def describe(self) -> str:
        """Everything needed to look into a failed run."""
        return (
            f"{self.log}\n\n{self.name} failed with seed {self.seed}\n{self.reason}\n"
            f"replay  {self.replay_command}"
        )


SCENARIOS: dict[str, Scenario] = {
    "wire": run_wire,
}
"""Lowest layer first."""


def run_seed(name: str, scenario: Scenario, seed: int) -> Outcome:
    """Run a scenario once; never raises for what happens inside."""
    simulation = Simulation(seed)
    exit_code, reason = 0, ""
    try:
        scenario(simulation)
    except SimulationFailure as failure:
        exit_code, reason = failure.exit_code, f"{failure.kind}: {failure}"
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        exit_code, reason = CRASH, f"crash: {error!r}\n\n{trace}"
    return Outcome(
        name=name,
        seed=seed,
        exit_code=exit_code,
        reason=reason,
        log=str(simulation.log),
        actions=simulation.timeline.actions,
        virtual_s=simulation.now,
    )
