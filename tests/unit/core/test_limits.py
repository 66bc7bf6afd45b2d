"""Limits are checked when they are made."""

import pytest
from msgspec import structs

from postroad.core.errors import ConfigError
from postroad.core.limits import Limits

FIELDS = [field.name for field in structs.fields(Limits)]
HEARTBEATS = ["heartbeat_interval_s", "heartbeat_timeout_s"]


def with_value(field: str, value: float) -> Limits:
    return structs.replace(Limits(), **{field: value})


def test_the_defaults_are_valid() -> None:
    limits = Limits()
    assert limits.has_heartbeats
    assert all(getattr(limits, field) > 0 for field in FIELDS)


def test_no_limit_is_negative_endless_or_zero(subtests: pytest.Subtests) -> None:
    for value in [-1, -0.001, float("nan"), float("inf"), float("-inf")]:
        for field in FIELDS:
            refusal = pytest.raises(ConfigError, match=f"limit {field}=")
            with subtests.test(value=value, field=field), refusal:
                with_value(field, value)

    for field in [field for field in FIELDS if field not in HEARTBEATS]:
        refusal = pytest.raises(ConfigError, match=f"limit {field} must be more than 0")
        with subtests.test(field=field), refusal:
            with_value(field, 0)


def test_heartbeats_are_off_or_before_their_timeout(subtests: pytest.Subtests) -> None:
    assert not Limits(heartbeat_interval_s=0, heartbeat_timeout_s=0).has_heartbeats

    for field in HEARTBEATS:
        with subtests.test(field=field), pytest.raises(ConfigError, match="both 0 or neither"):
            with_value(field, 0)

    for interval in [15, 16]:
        refusal = pytest.raises(ConfigError, match=f"heartbeat_interval_s={interval} must be less")
        with subtests.test(interval=interval), refusal:
            Limits(heartbeat_interval_s=interval, heartbeat_timeout_s=15)


def test_limits_fit_into_the_bits_that_tell_them(subtests: pytest.Subtests) -> None:
    assert Limits(frame_bytes_max=2**31 - 1).frame_bytes_max == 2_147_483_647
    with pytest.raises(ConfigError, match="frame_bytes_max"):
        Limits(frame_bytes_max=2**31)

    for field, value in [("requests_pending_max", 2**32), ("heartbeat_timeout_s", 2**32 / 1000)]:
        with subtests.test(field=field), pytest.raises(ConfigError, match=field):
            with_value(field, value)
