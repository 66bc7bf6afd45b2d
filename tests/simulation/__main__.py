"""Command line of the simulations; `postroad.testing.simulation.runner` tells of exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from postroad.testing import main as run_scenarios
from tests.simulation.scenarios import FIRST_SEED, PROGRAM, SCENARIOS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scenarios of this repository."""
    return run_scenarios(SCENARIOS, argv, program=PROGRAM, first_seed=FIRST_SEED)


if __name__ == "__main__":
    sys.exit(main())
