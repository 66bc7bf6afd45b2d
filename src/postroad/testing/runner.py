"""Runs scenarios over seeds, and tells how to see a failing one again.

Exit codes: 0 all seeds passed, 127 something crashed, 128 something that had to happen did not,
129 something happened that must not, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .failures import CRASH, SimulationFailure
from .simulation import Scenario, Simulation

SEEDS = 100
STOPPED = 130
# Long runs tell this often how far they are.
PROGRESS_S = 15.0


class Outcome(NamedTuple):
    """How a run ended. `exit_code` is 0 when all went well."""

    name: str
    seed: int
    exit_code: int
    reason: str
    log: str
    actions: int
    virtual_s: float
    program: str

    @property
    def replay_command(self) -> str:
        """What a person types to see this run again."""
        return f"{self.program} --only {self.name} --seeds 1 --first-seed {self.seed}"

    def describe(self) -> str:
        """Everything needed to look into a failed run."""
        return (
            f"{self.log}\n\n{self.name} failed with seed {self.seed}\n{self.reason}\n"
            f"replay  {self.replay_command}"
        )


def run_seed(name: str, scenario: Scenario, seed: int, *, program: str | None = None) -> Outcome:
    """Run a scenario once; never raises for what happens inside.

    Args:
        name: the scenario's name.
        scenario: what to run.
        seed: decides everything.
        program: how a person starts the scenarios; this program by default.
    """
    simulation = Simulation(seed)
    exit_code, reason = 0, ""
    try:
        scenario(simulation)
    except SimulationFailure as failure:
        exit_code, reason = failure.exit_code, f"{failure.kind}: {failure}"
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        exit_code, reason = CRASH, f"crash: {error!r}\n\n{trace}"
    return Outcome(
        name=name,
        seed=seed,
        exit_code=exit_code,
        reason=reason,
        log=str(simulation.log),
        actions=simulation.actions,
        virtual_s=simulation.now,
        program=program or this_program(),
    )


def main(
    scenarios: Mapping[str, Scenario],
    argv: Sequence[str] | None = None,
    *,
    program: str | None = None,
) -> int:
    """Run each scenario with a range of seeds, up to the first that fails; returns the exit code.

    For a program of your own, `mytests/simulation/__main__.py`:

        sys.exit(main({"restart": run_restart}))

    Args:
        scenarios: by name, in the order in which they run.
        argv: the arguments; those of the command line by default.
        program: how a person starts it; found out by default.
    """
    program = program or this_program()
    options = _parse(scenarios, argv, program)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    chosen = {options.only: scenarios[options.only]} if options.only else scenarios
    try:
        for name, scenario in chosen.items():
            if exit_code := _run(name, scenario, seeds, program, shows_log=options.log):
                return exit_code
    except KeyboardInterrupt:
        _say("\nstopped")
        return STOPPED
    return 0


def this_program() -> str:
    """The command that started this process, without its arguments."""
    started = sys.modules["__main__"]
    if started.__spec__ is not None:
        return f"python -m {started.__spec__.name.removesuffix('.__main__')}"
    return f"python {sys.argv[0]}"


def _parse(
    scenarios: Mapping[str, Scenario], argv: Sequence[str] | None, program: str
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program, description="Run each scenario with a range of seeds."
    )
    parser.add_argument(
        "--only", choices=list(scenarios), help="run one scenario; the default is all"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many (default: %(default)d)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first (default: 0)")
    parser.add_argument("--log", action="store_true", help="print the events of every run")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    return options


def _run(name: str, scenario: Scenario, seeds: range, program: str, *, shows_log: bool) -> int:
    started = time.monotonic()
    told = started
    actions, virtual_s = 0, 0.0
    for seed in seeds:
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            _say(f"{name:<10}  seeds {seeds[0]} to {seed - 1}  ok so far, of {len(seeds):,}")
        outcome = run_seed(name, scenario, seed, program=program)
        actions += outcome.actions
        virtual_s += outcome.virtual_s
        if outcome.exit_code:
            _say(outcome.describe())
            return outcome.exit_code
        if shows_log:
            _say(f"{outcome.log}\n")
    _say(
        f"{name:<10}  seeds {seeds[0]} to {seeds[-1]}  ok  {actions:,} events, "
        f"{virtual_s:,.0f} s of virtual time in {time.monotonic() - started:.1f} s"
    )
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
