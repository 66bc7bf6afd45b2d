"""Bulkheads."""

import pytest

from postroad.core.errors import ConfigError
from postroad.services.bulkheads import Bulkhead, BulkheadConfig, Entry
from tests.support.cases import naming


def test_bulkhead_runs_queues_or_refuses() -> None:
    bulkhead: Bulkhead[int] = Bulkhead(BulkheadConfig(concurrency=2, queue_max=2))
    entries = [bulkhead.enter(number) for number in range(5)]
    assert entries == [Entry.RUNS, Entry.RUNS, Entry.WAITS, Entry.WAITS, Entry.REFUSED]
    assert repr(bulkhead) == "<Bulkhead: 2 running, 2 waiting>"
    assert [bulkhead.leave() for _ in range(4)] == [2, 3, None, None]
    assert (bulkhead.running, bulkhead.waiting) == (0, 0)
    bulkhead = Bulkhead(BulkheadConfig(concurrency=1, queue_max=0))
    assert [bulkhead.enter(1), bulkhead.enter(2)] == [Entry.RUNS, Entry.REFUSED]
    for field, value in (("concurrency", 0), ("queue_max", -1)):
        with naming(field), pytest.raises(ConfigError, match=field):
            BulkheadConfig(**{field: value})  # type: ignore[arg-type]  # It has other fields.


def test_one_that_waits_may_give_up() -> None:
    bulkhead: Bulkhead[int] = Bulkhead(BulkheadConfig(concurrency=1, queue_max=5))
    for number in range(3):
        bulkhead.enter(number)
    assert bulkhead.give_up(1)
    assert not bulkhead.give_up(0)
    assert bulkhead.leave() == 2
