"""Clusters of many nodes: what the protocol takes does not grow with them."""

import pytest

from benchmarks.cluster import (
    GROWTH_MAX,
    JOIN_BUDGET_S,
    REMOVAL_BUDGET_S,
    Report,
    count_false_suspicions,
    simulate,
)
from postroad.cluster import MembershipConfig
from tests.support.tiers import by_tier

SMALL = by_tier(test=20, nightly=50)
LARGE = by_tier(test=50, nightly=100)
CALM_S = by_tier(test=60.0, nightly=120.0)


@pytest.fixture(scope="module")
def reports() -> dict[int, Report]:
    return {size: simulate(size) for size in (SMALL, LARGE)}


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_all_members_learn_of_joins_and_leaves(reports: dict[int, Report], size: int) -> None:
    report = reports[size]
    config = MembershipConfig()

    assert report.join_s <= JOIN_BUDGET_S
    assert report.removal_s <= REMOVAL_BUDGET_S
    # Nobody is given up without the time to speak up.
    assert report.removal_s >= config.confirmed_failure_timeout_s
    assert report.suspicion_s <= report.removal_s


def test_load_of_a_node_does_not_grow(reports: dict[int, Report]) -> None:
    small, large = reports[SMALL], reports[LARGE]
    config = MembershipConfig()

    assert large.packets_per_s <= small.packets_per_s * GROWTH_MAX
    assert large.bytes_per_s <= small.bytes_per_s * GROWTH_MAX
    # It asks one member in each interval, and is asked by one; now and then it compares views.
    assert 2 <= large.packets_per_s * config.probe_interval_s <= 4


def test_lost_datagrams_and_short_pauses_cause_no_suspicion() -> None:
    assert count_false_suspicions(SMALL, CALM_S) == 0


def test_long_pauses_are_suspected() -> None:
    """So that the count above can be something else than 0."""
    assert count_false_suspicions(10, 30.0, pause_s=5.0) > 0
