"""Repeated log lines are counted, not told."""

import logging

import pytest

from postroad.core.log_throttle import KEYS_MAX, ThrottledLogger


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


def test_each_key_has_a_line_and_a_count_of_its_own(
    crowded: ThrottledLogger, caplog: pytest.LogCaptureFixture
) -> None:
    for key, now in (("a", 0), ("b", 0), ("a", 9.9), ("b", 10), ("a", 10)):
        crowded.log(key, now, key)
    assert caplog.messages == ["a", "b", "b", "a (and 1 more like it)"]


def test_keys_that_peers_make_up_take_bounded_memory(
    crowded: ThrottledLogger, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(KEYS_MAX):
        crowded.log(f"peer {number}", 0, "here")
    crowded.log("peer 0", 1, "again")
    assert len(caplog.messages) == KEYS_MAX
    crowded.log("one more", 1, "here")
    assert len(crowded._logged) == 1
