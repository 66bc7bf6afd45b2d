"""Which extents a segment belongs to."""

import math
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Window, WindowType
from postroad.pipeline.windows import InvalidSegmentError
from postroad.pipeline.windows.assigners import WindowAssigner, assignment_of
from postroad.pipeline.windows.encoding import time_of
from postroad.pipeline.windows.panes import Pane


def assignment(type: WindowType, **lengths: Any) -> WindowAssigner:
    return assignment_of(Window(name="w", task="t", type=type, aggregation="count", **lengths))


def test_fixed() -> None:
    for range_s, time_s, lower, upper in (
        (10, 0.0, 0.0, 10.0),
        (10, 9.999, 0.0, 10.0),
        (10.0, 10.0, 10.0, 20.0),
        (10, -0.5, -10.0, 0.0),
        (60, 1_700_000_000.75, 1_699_999_980.0, 1_700_000_040.0),
        (0.1, 0.3, 0.3, 0.4),
        (0.1, 1_700_000_000.3, 1_700_000_000.3, 1_700_000_000.4),
        (2.5, 6.0, 5.0, 7.5),
    ):
        fixed = assignment(WindowType.FIXED, range_s=range_s)
        assert fixed.lowers(time_s) == [lower], (range_s, time_s, lower, upper)
        assert fixed.upper(lower, time_s) == upper, (range_s, time_s, lower, upper)


def test_sliding() -> None:
    for range_s, slide_s, time_s, lowers in (
        (10, 5, 12.0, [5.0, 10.0]),
        (10, 5, 10.0, [5.0, 10.0]),
        (10, 5, -1.0, [-10.0, -5.0]),
        (0.3, 0.1, 0.3, [0.1, 0.2, 0.3]),
        (1, 3, 2.0, []),
        (1, 3, 3.5, [3.0]),
    ):
        assert (
            assignment(WindowType.SLIDING, range_s=range_s, slide_s=slide_s).lowers(time_s)
            == lowers
        ), (range_s, slide_s, time_s, lowers)


def test_global_is_one_without_end() -> None:
    everything = assignment(WindowType.GLOBAL)
    assert everything.lowers(5.0) == everything.lowers(-math.inf) == [0.0]
    assert everything.upper(0.0, 5.0) == math.inf


def test_sessions_meet_when_closer_than_the_gap() -> None:
    for lower, latest, meeting in (
        (0.0, 0.0, (0, 0)),
        (0.1, 0.1, (0, 1)),
        (3.0, 3.0, (1, 1)),
        (2.9, 2.9, (0, 1)),
        (2.9, 3.1, (0, 2)),
        (5.5, 5.5, (1, 2)),
        (6.0, 9.0, (2, 2)),
    ):
        sessions = assignment(WindowType.SESSION, gap_s=1.0)
        line = [Pane(1.0, 2.0, None), Pane(4.0, 5.0, None)]
        assert sessions.meeting(line, lower, latest) == meeting, (lower, latest, meeting)
        assert sessions.upper(lower, latest) == pytest.approx(latest + 1.0), (
            lower,
            latest,
            meeting,
        )


def test_a_gap_is_what_is_written() -> None:
    sessions = assignment(WindowType.SESSION, gap_s=0.1)
    assert sessions.meeting([Pane(0.2, 0.2, None)], 0.3, 0.3) == (1, 1)
    assert sessions.upper(0.2, 0.2) == 0.3


def test_lengths_are_needed() -> None:
    for type, lengths, missing in (
        (WindowType.FIXED, {}, "range_s is None"),
        (WindowType.FIXED, {"range_s": 0}, "range_s is 0"),
        (WindowType.SLIDING, {"range_s": 1}, "slide_s is None"),
        (WindowType.SLIDING, {"range_s": 1, "slide_s": math.nan}, "slide_s is nan"),
        (WindowType.SESSION, {"gap_s": math.inf}, "gap_s is inf"),
    ):
        with pytest.raises(ConfigError, match=missing):
            assignment(type, **lengths)


def test_time() -> None:
    assert time_of({"at": 3}, "at") == 3.0
    assert math.copysign(1, time_of({"at": -0.0}, "at")) == 1.0


def test_what_is_no_time_is_refused() -> None:
    for value in ("3", None, True, math.nan, math.inf, 1_700_000_000 * 10**9):
        with pytest.raises(
            InvalidSegmentError, match=r"key 'at' is .*; its window needs a time in seconds"
        ):
            time_of({"at": value}, "at")


def test_a_missing_time_is_refused() -> None:
    with pytest.raises(InvalidSegmentError, match="no key 'at'"):
        time_of({"when": 3}, "at")
