"""Repeated log lines are counted, not told."""

from postroad.core.throttle import KEYS_MAX, Throttle


def test_the_first_of_a_key_is_told() -> None:
    throttle = Throttle(10)
    assert throttle.admit("a", 0) == 0
    assert throttle.admit("b", 0) == 0


def test_the_next_ones_are_counted_until_the_interval_is_over() -> None:
    throttle = Throttle(10)
    throttle.admit("a", 0)
    assert [throttle.admit("a", now) for now in (0, 5, 9.9)] == [None, None, None]
    assert throttle.admit("a", 10) == 3
    assert throttle.admit("a", 20) == 0


def test_keys_do_not_disturb_each_other() -> None:
    throttle = Throttle(10)
    throttle.admit("a", 0)
    throttle.admit("a", 1)
    assert throttle.admit("b", 1) == 0
    assert throttle.admit("a", 10) == 1


def test_the_table_stays_bounded() -> None:
    throttle = Throttle(10)
    for number in range(KEYS_MAX):
        assert throttle.admit(f"peer {number}", 0) == 0
    assert throttle.admit("peer 0", 1) is None

    assert throttle.admit("one more", 1) == 0
    assert len(throttle._seen) == 1
    assert throttle.admit("peer 0", 1) == 0
