"""The pace of starts, and what a limit must be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import ConfigError
from postroad.flows import StepLimit
from postroad.flows.engine.step_limits import RatePacer


def test_starts_are_spread_after_a_burst() -> None:
    pacer = RatePacer(0.5, 3)
    assert [pacer.reserve(10.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]
    # As late as the last one was told to be, and no burst after it.
    assert pacer.reserve(11.5) == 0.5
    # After a long pause there is one.
    assert [pacer.reserve(100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


@given(
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
    st.integers(1, 5),
    st.floats(0.01, 2.0),
)
def test_no_window_has_more_starts_than_its_rate(
    pauses: list[float], burst: int, interval_s: float
) -> None:
    pacer = RatePacer(interval_s, burst)
    starts = [now + pacer.reserve(now) for now in itertools.accumulate(pauses)]
    assert starts == sorted(starts)
    for first, start in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = burst + (starts[last] - start) / interval_s
            assert last - first + 1 <= allowed + 1e-6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "step limit 'bank' needs `concurrency` or `per_second`"),
        ({"concurrency": 0}, "concurrency=0 must be a finite number above 0"),
        ({"per_second": -1.0}, "per_second=-1.0 must be"),
        ({"per_second": float("inf")}, "per_second=inf must be"),
        ({"per_second": 1.0, "burst": 0}, "burst=0 must be"),
    ],
)
def test_limits_that_cannot_be(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StepLimit("bank", **values)  # type: ignore[arg-type]
