"""Settings: all of them positive, and pauses that grow."""

from itertools import pairwise, product
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MailConfig, Retry
from tests.support.cases import naming

WRONG: list[Any] = [0, -1, float("nan"), float("inf")]


def test_every_setting_is_a_finite_number_above_zero() -> None:
    kinds: list[Any] = [MailConfig, Retry]
    for kind, value in product(kinds, WRONG):
        for field in kind.__struct_fields__:
            with naming((field, value)), pytest.raises(ConfigError, match=field):
                kind(**{field: value})


def test_pauses_grow_up_to_the_longest_and_differ_by_chance() -> None:
    retry = Retry(first_s=0.5, max_s=4.0)
    pauses = [retry.pause_s(failures, chance=1.0) for failures in range(1, 40)]
    assert pauses[0] <= 0.5
    assert all(earlier <= later for earlier, later in pairwise(pauses))
    assert pauses[-1] == pytest.approx(4.0)
    retry = Retry()
    assert retry.pause_s(5, chance=0.0) < retry.pause_s(5, chance=0.9)
    assert MailConfig(page_letters_max=65_535).page_letters_max == 65_535
    with pytest.raises(ConfigError, match="page_letters_max"):
        MailConfig(page_letters_max=65_536)
