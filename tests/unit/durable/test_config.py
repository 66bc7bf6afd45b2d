"""Settings: all of them positive, and pauses that grow."""

from itertools import pairwise, product
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import DurableQueuesConfig, RetryPolicy
from tests.support.cases import naming

WRONG: list[Any] = [0, -1, float("nan"), float("inf")]


def test_every_setting_is_a_finite_number_above_zero() -> None:
    kinds: list[Any] = [DurableQueuesConfig, RetryPolicy]
    for kind, value in product(kinds, WRONG):
        for field in kind.__struct_fields__:
            with naming((field, value)), pytest.raises(ConfigError, match=field):
                kind(**{field: value})


def test_pauses_grow_up_to_the_longest_and_differ_by_chance() -> None:
    retry = RetryPolicy(initial_delay_s=0.5, max_delay_s=4.0)
    pauses = [retry.delay_s(failures, jitter=1.0) for failures in range(1, 40)]
    assert pauses[0] <= 0.5
    assert all(earlier <= later for earlier, later in pairwise(pauses))
    assert pauses[-1] == pytest.approx(4.0)
    retry = RetryPolicy()
    assert retry.delay_s(5, jitter=0.0) < retry.delay_s(5, jitter=0.9)
    assert DurableQueuesConfig(batch_messages_max=65_535).batch_messages_max == 65_535
    with pytest.raises(ConfigError, match="batch_messages_max"):
        DurableQueuesConfig(batch_messages_max=65_536)
