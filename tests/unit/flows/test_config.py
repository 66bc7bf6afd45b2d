"""Settings of flows."""

from itertools import product
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.flows import FlowsConfig
from tests.support.cases import each

NUMBERS = [it for it in FlowsConfig.__struct_fields__ if it != "reload"]


@each(*product([0, -1, float("nan"), float("inf")], NUMBERS))
def test_every_number_is_finite_and_above_zero(value: Any, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        FlowsConfig(**{field: value})


def test_defaults_are_valid_and_make_a_retry() -> None:
    retry = FlowsConfig(attempts_max=3, retry_first_s=1.0, retry_max_s=4.0).retry
    assert (retry.attempts, retry.first_s, retry.max_s) == (3, 1.0, 4.0)
    assert not FlowsConfig().reload
    assert FlowsConfig(reload=True).reload
