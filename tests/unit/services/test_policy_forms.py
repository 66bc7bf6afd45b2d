"""Policies in definitions of actions."""

import pytest

from postroad.core.errors import ConfigError
from postroad.services.breakers import BreakerConfig
from postroad.services.policies import RetryPolicy
from postroad.services.policy_forms import read_breaker, read_retry
from tests.support.cases import naming


def test_definition_overrides_the_usual_policy() -> None:
    usual = RetryPolicy(retries=7)
    said = {"enabled": True, "delay": 50, "maxDelay": 2000.0, "factor": 3, "check": None}
    assert read_retry(said, usual) == RetryPolicy(
        is_enabled=True, retries=7, delay_s=0.05, delay_max_s=2, factor=3
    )
    assert read_retry({"retries": 2.0}, usual).retries == 2
    assert read_retry(None, usual) is usual
    said = {"enabled": 1, "threshold": 0.3, "windowTime": 30, "minRequestCount": 5}
    assert read_breaker({**said, "halfOpenTime": 500}, BreakerConfig()) == BreakerConfig(
        is_enabled=True, threshold=0.3, window_s=30, requests_min=5, half_open_s=0.5
    )
    with pytest.raises(ConfigError, match="threshold"):
        read_breaker({"threshold": 3}, BreakerConfig())
    for wrong in (3, {"retries": "2"}, {"delay": True}, {"factor": float("nan")}):
        with naming(wrong), pytest.raises(ConfigError, match="retryPolicy"):
            read_retry(wrong, RetryPolicy())
