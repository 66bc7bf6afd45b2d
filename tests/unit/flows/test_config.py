"""Settings of flows."""

from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.flows import FlowsConfig

NUMBERS = [it for it in FlowsConfig.__struct_fields__ if it != "reload"]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("field", NUMBERS)
def test_every_number_is_finite_and_above_zero(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        FlowsConfig(**{field: value})


def test_how_flows_are_tried_again() -> None:
    retry = FlowsConfig(attempts_max=3, retry_first_s=1.0, retry_max_s=4.0).retry
    assert (retry.attempts, retry.first_s, retry.max_s) == (3, 1.0, 4.0)


def test_the_defaults_are_valid_and_do_not_reload() -> None:
    assert not FlowsConfig().reload
    assert FlowsConfig(reload=True).reload
