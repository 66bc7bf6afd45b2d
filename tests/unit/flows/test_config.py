"""Settings of flows."""

from itertools import product
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.flows import FlowsConfig
from tests.support.cases import naming

NUMBERS = [name for name in FlowsConfig.__struct_fields__ if name != "replay_every_time"]


def test_settings_are_finite_numbers_above_zero() -> None:
    wrong: list[Any] = [0, -1, float("nan"), float("inf")]
    for value, field in product(wrong, NUMBERS):
        with naming((value, field)), pytest.raises(ConfigError, match=field):
            FlowsConfig(**{field: value})
    retry = FlowsConfig(max_attempts=3, retry_initial_delay_s=1.0, retry_max_delay_s=4.0).retry
    assert (retry.max_attempts, retry.initial_delay_s, retry.max_delay_s) == (3, 1.0, 4.0)
    assert not FlowsConfig().replay_every_time
    assert FlowsConfig(replay_every_time=True).replay_every_time
