"""Validation of the membership settings."""

import math
from typing import Any

import pytest

from postroad.cluster.membership import MembershipConfig
from postroad.core.errors import ConfigError


def make_config(**fields: Any) -> MembershipConfig:
    return MembershipConfig(**fields)


def test_config_number_not_above_zero_or_infinite_is_rejected(subtests: pytest.Subtests) -> None:
    config = MembershipConfig()
    assert config.indirect_probe_delay_s < config.probe_timeout_s < config.failure_timeout_s

    for field in MembershipConfig.__struct_fields__:
        for value in [0, -1, math.inf, math.nan]:
            refusal = pytest.raises(ConfigError, match=f"{field}={value!r}")
            with subtests.test(field=field, value=value), refusal:
                make_config(**{field: value})

    assert MembershipConfig(packet_bytes_max=1_024).packet_bytes_max == 1_024
    with pytest.raises(ConfigError, match="packet_bytes_max"):
        MembershipConfig(packet_bytes_max=1_023)


def test_config_minimum_above_its_maximum_is_rejected(subtests: pytest.Subtests) -> None:
    for shorter, longer in [
        ("indirect_probe_delay_s", "probe_timeout_s"),
        ("confirmed_failure_timeout_s", "failure_timeout_s"),
        ("packet_bytes_max", "stream_bytes_max"),
    ]:
        with subtests.test(shorter=shorter):
            assert getattr(make_config(**{shorter: 2_000, longer: 2_000}), shorter) == 2_000
            with pytest.raises(
                ConfigError, match=rf"{shorter}=2001 must not be more than {longer}=2000"
            ):
                make_config(**{shorter: 2_001, longer: 2_000})
