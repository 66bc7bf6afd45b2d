"""The meter: a rate that forgets."""

import pytest

from postroad.durable.telemetry import RateEstimator


def test_rate_estimator_follows_steady_rate_and_decays() -> None:
    for step_s in (0.01, 1.0):
        meter, now = RateEstimator(), 50.0
        while now < 150.0:
            now += step_s
            meter.add(round(200 * step_s), now)
        assert meter.per_s(now) == pytest.approx(200, rel=0.06), step_s
    assert RateEstimator().per_s(1_000.0) == 0.0
    meter = RateEstimator()
    meter.add(1_000, 0.0)
    rates = [meter.per_s(now) for now in (0.0, 10.0, 20.0, 100.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] == pytest.approx(rates[0] / 2.718, rel=0.01)
    assert rates[3] < 0.01
    meter = RateEstimator()
    meter.add(10, 1.0)
    assert meter.per_s(3.0) == meter.per_s(3.0)
    meter = RateEstimator()
    meter.add(5, 1.0)
    meter.add(100, 1e6)
    assert meter.per_s(1e6) == pytest.approx(10)
