"""Command line of the simulations.

Exit codes: 0 all seeds passed, 127 something crashed, 128 something that had to happen did not,
129 something happened that must not, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulation.context import Scenario
from tests.simulation.scenarios import SCENARIOS, run_seed

SEEDS = 100
STOPPED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run each scenario with a range of seeds, up to the first that fails."""
    options = _parse(argv)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    chosen = {options.only: SCENARIOS[options.only]} if options.only else SCENARIOS
    try:
        for name, scenario in chosen.items():
            if exit_code := _run(name, scenario, seeds, shows_log=options.log):
                return exit_code
    except KeyboardInterrupt:
        print("\nstopped")
        return STOPPED
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=main.__doc__)
    parser.add_argument(
        "--only", choices=list(SCENARIOS), help="run one scenario; the default is all"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many (default: %(default)d)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first (default: 0)")
    parser.add_argument("--log", action="store_true", help="print the events of every run")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    return options


def _run(name: str, scenario: Scenario, seeds: range, *, shows_log: bool) -> int:
    started = time.monotonic()
    actions, virtual_s = 0, 0.0
    for seed in seeds:
        outcome = run_seed(name, scenario, seed)
        actions += outcome.actions
        virtual_s += outcome.virtual_s
        if outcome.exit_code:
            print(outcome.describe(), flush=True)
            return outcome.exit_code
        if shows_log:
            print(f"{outcome.log}\n", flush=True)
    print(
        f"{name:<10}  seeds {seeds[0]} to {seeds[-1]}  ok  {actions:,} events, "
        f"{virtual_s:,.0f} s of virtual time in {time.monotonic() - started:.1f} s",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
