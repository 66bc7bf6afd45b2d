"""Many domains: all know all routes soon, after any restart, and idle ones hardly say anything."""

import pytest

from benchmarks.cells.scale import (
    CONVERGENCE_BUDGET_S,
    GROWTH_MAX,
    PHASES,
    Phase,
    Report,
    Size,
    simulate,
)
from postroad.cells import RouteLearnerConfig

SMALL = Size(3, 5, 75)
LARGE = Size(3, 20, 300)


@pytest.fixture(scope="module")
def reports() -> dict[Size, Report]:
    return {size: simulate(size) for size in (SMALL, LARGE)}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=str)
def test_all_tables_are_right_soon(reports: dict[Size, Report], size: Size, phase: str) -> None:
    report: Phase = getattr(reports[size], phase)
    assert report.seconds <= CONVERGENCE_BUDGET_S
    # Further cores become defaults only after they had time to meet everybody.
    assert report.seconds >= RouteLearnerConfig().default_delay_s
    assert report.control_bytes > 0


def test_a_restart_costs_far_less_than_a_start(reports: dict[Size, Report]) -> None:
    report = reports[LARGE]
    assert report.satellite.control_bytes * 4 < report.start.control_bytes
    # Every satellite tells the others that this core speaks for it again.
    assert report.core.control_bytes * 3 < report.start.control_bytes * 2


def test_what_an_idle_satellite_sends_does_not_grow(reports: dict[Size, Report]) -> None:
    small, large = reports[SMALL], reports[LARGE]
    assert 0 < large.idle_bytes_per_s <= small.idle_bytes_per_s * GROWTH_MAX
