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


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", FIELDS)
def test_no_limit_is_negative_or_endless(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"limit {field}="):
        with_value(field, value)


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in HEARTBEATS])
def test_no_limit_is_zero(field: str) -> None:
    with pytest.raises(ConfigError, match=f"limit {field} must be more than 0"):
        with_value(field, 0)


def test_heartbeats_can_be_off() -> None:
    assert not Limits(heartbeat_interval_s=0, heartbeat_timeout_s=0).has_heartbeats


@pytest.mark.parametrize("field", HEARTBEATS)
def test_heartbeats_are_not_half_off(field: str) -> None:
    with pytest.raises(ConfigError, match="both 0 or neither"):
        with_value(field, 0)


@pytest.mark.parametrize("interval", [15, 16])
def test_a_heartbeat_comes_before_its_timeout(interval: float) -> None:
    with pytest.raises(ConfigError, match=f"heartbeat_interval_s={interval} must be less"):
        Limits(heartbeat_interval_s=interval, heartbeat_timeout_s=15)


def test_the_largest_frame_has_a_signed_32_bit_length() -> None:
    assert Limits(frame_bytes_max=2**31 - 1).frame_bytes_max == 2_147_483_647
    with pytest.raises(ConfigError, match="frame_bytes_max"):
        Limits(frame_bytes_max=2**31)


@pytest.mark.parametrize(
    ("field", "value"),
    [("requests_pending_max", 2**32), ("heartbeat_timeout_s", 2**32 / 1000)],
)
def test_what_a_hello_tells_fits_its_32_bits(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        with_value(field, value)
