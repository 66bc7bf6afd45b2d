"""Repeated log lines are counted, not told."""

import logging

import pytest

from postroad.core.log_throttle import KEYS_MAX, LogThrottle, ThrottledLogger


def test_log_throttle_first_of_a_key_is_admitted_others_are_counted() -> None:
    throttle = LogThrottle(10)
    assert throttle.try_acquire("a", 0) == 0
    assert throttle.try_acquire("b", 0) == 0

    throttle = LogThrottle(10)
    throttle.try_acquire("a", 0)
    assert [throttle.try_acquire("a", now) for now in (0, 5, 9.9)] == [None, None, None]
    assert throttle.try_acquire("a", 10) == 3
    assert throttle.try_acquire("a", 20) == 0

    throttle = LogThrottle(10)
    throttle.try_acquire("a", 0)
    throttle.try_acquire("a", 1)
    assert throttle.try_acquire("b", 1) == 0
    assert throttle.try_acquire("a", 10) == 1


def test_the_table_stays_bounded() -> None:
    throttle = LogThrottle(10)
    for number in range(KEYS_MAX):
        assert throttle.try_acquire(f"peer {number}", 0) == 0
    assert throttle.try_acquire("peer 0", 1) is None

    assert throttle.try_acquire("one more", 1) == 0
    assert len(throttle._seen) == 1
    assert throttle.try_acquire("peer 0", 1) == 0


@pytest.fixture
def crowded(caplog: pytest.LogCaptureFixture) -> ThrottledLogger:
    caplog.set_level(logging.DEBUG, logger="test.throttle")
    return ThrottledLogger(logging.getLogger("test.throttle"), 10)


def test_lines_of_a_crowd_are_logged_with_the_count_of_the_rest(
    crowded: ThrottledLogger, caplog: pytest.LogCaptureFixture
) -> None:
    for now in (0, 1, 2, 10, 20):
        crowded.log("refused", now, "refused %s at %d %%", "b", now)
    assert caplog.messages == [
        "refused b at 0 %",
        "refused b at 10 % (and 2 more like it)",
        "refused b at 20 %",
    ]

    crowded.log("a", 0, "plain 100 %")
    crowded.log("b", 0, "small", level=logging.DEBUG)
    crowded.log("b", 1, "small", level=logging.DEBUG)
    assert [(record.levelno, record.getMessage()) for record in caplog.records[3:]] == [
        (logging.WARNING, "plain 100 %"),
        (logging.DEBUG, "small"),
    ]
