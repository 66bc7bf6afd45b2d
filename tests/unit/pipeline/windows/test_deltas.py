"""What a batch adds, and what becomes of segments that do not fit."""

from typing import Any

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.pipeline.job import Segment, Trigger, TriggerType, Window, WindowType
from postroad.pipeline.windows import (
    Aggregation,
    CompiledWindows,
    InvalidSegmentError,
    JobWindowDelta,
    WindowDeltaBuilder,
)
from tests.support.pipeline.seen_windows import encode_delta

FIXED = Window(
    name="fixed", task="t", type=WindowType.FIXED, aggregation="sum", key="n", time_key="at",
    range_s=10,
)  # fmt: skip
SESSIONS = Window(
    name="sessions", task="t", type=WindowType.SESSION, aggregation="count", time_key="at", gap_s=5
)
TOTAL = Window(name="total", task="other", type=WindowType.GLOBAL, aggregation="count")


def nothing(path: str) -> Any:
    raise AssertionError(path)


def maker_of(*windows: Window) -> WindowDeltaBuilder:
    return WindowDeltaBuilder(CompiledWindows(windows, [], nothing))


def spans(delta: JobWindowDelta, window: str) -> list[tuple[float, float, int]]:
    return [
        (addition.lower, addition.latest, addition.segments)
        for line in delta.windows[window].groups.values()
        for addition in line
    ]


def test_a_segment_goes_into_the_windows_of_its_task() -> None:
    maker = maker_of(FIXED, SESSIONS, TOTAL)
    maker.add("t", "a", {"at": 12, "n": 1})
    maker.add("t", "a", {"at": 3, "n": 1})
    maker.add("t", "a", {"at": 7.5, "n": 1})
    assert sorted(maker.delta.windows) == ["fixed", "sessions"]
    assert spans(maker.delta, "fixed") == [(0.0, 7.5, 2), (10.0, 12.0, 1)]
    assert spans(maker.delta, "sessions") == [(3.0, 12.0, 3)]
    assert maker.delta.windows["fixed"].latest == 12.0


def test_a_task_without_windows_adds_nothing() -> None:
    maker = maker_of(FIXED)
    maker.add("elsewhere", "a", {})
    assert maker.delta == JobWindowDelta()


def test_a_segment_that_one_window_cannot_use_is_in_none() -> None:
    for group, segment in (
        ("a", {"at": 1}),
        ("a", {"at": 1, "n": "one"}),
        ("a", {"n": 1}),
        ({1}, {"at": 1, "n": 1}),
    ):
        maker = maker_of(SESSIONS, FIXED)
        with pytest.raises(InvalidSegmentError):
            maker.add("t", group, segment)
        assert maker.delta == JobWindowDelta(), (group, segment)


def test_a_session_between_two_joins_them() -> None:
    left, right = maker_of(SESSIONS), maker_of(SESSIONS)
    left.add("t", 1, {"at": 0})
    left.add("t", 1, {"at": 8})
    right.add("t", 1, {"at": 4})
    right.add("t", 2, {"at": 4})
    encoded = encode_delta(right.delta)
    left.merge(right.delta)
    assert spans(left.delta, "sessions") == [(0.0, 8.0, 3), (4.0, 4.0, 1)]
    left.add("t", 2, {"at": 5})
    assert encode_delta(right.delta) == encoded, "what was merged is not shared"


def test_a_predicate_marks_its_own_extent() -> None:
    trigger = Trigger(window="fixed", on=TriggerType.PUNCTUATION, predicate="m:is_last")
    plan = CompiledWindows([FIXED], [trigger], lambda path: lambda segment: segment.get("last"))
    maker = WindowDeltaBuilder(plan)
    maker.add("t", "a", {"at": 1, "n": 1, "last": True})
    maker.add("t", "a", {"at": 1, "n": 1})
    maker.add("t", "b", {"at": 1, "n": 1})
    lines = maker.delta.windows["fixed"].groups.values()
    assert [addition.marks for line in lines for addition in line] == [[0], []]


def test_marks_of_an_extent_are_put_together() -> None:
    triggers = [
        Trigger(window="fixed", on=TriggerType.PUNCTUATION, predicate=key) for key in ("x", "y")
    ]
    plan = CompiledWindows([FIXED], triggers, lambda path: lambda segment: path in segment)
    maker = WindowDeltaBuilder(plan)
    maker.add("t", "a", {"at": 1, "n": 1, "y": 1})
    maker.add("t", "a", {"at": 1, "n": 1, "x": 1})
    (line,) = maker.delta.windows["fixed"].groups.values()
    assert [addition.marks for addition in line] == [[0, 1]]


class Pairs(Aggregation):
    """One whose state is not the same after it was stored."""

    def init(self) -> Any:
        return ()

    def add(self, state: Any, segment: Segment) -> Any:
        return (*state, 1)

    def merge(self, left: Any, right: Any) -> Any:
        return left + right

    def result(self, state: Any) -> Any:
        return len(state)


def test_a_state_that_is_not_plain_is_refused() -> None:
    window = Window(name="w", task="t", type=WindowType.GLOBAL, aggregation="m:Pairs")
    maker = WindowDeltaBuilder(CompiledWindows([window], [], lambda path: Pairs))
    with pytest.raises(UsageError, match="lists and dicts"):
        maker.add("t", "a", {})


def test_a_plan_that_cannot_work_is_refused() -> None:
    for windows, triggers, text in (
        ([], [Trigger(window="w", on=TriggerType.TIMER)], "window 'w', which is not there"),
        ([TOTAL], [Trigger(window="total", on=TriggerType.PUNCTUATION)], "has no predicate"),
        ([TOTAL], [Trigger(window="total", on=TriggerType.SEGMENTS, threshold=0)], "above 0"),
        (
            [Window(name="w", task="t", type=WindowType.FIXED, aggregation="count", range_s=1)],
            [],
            "needs a time_key",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            CompiledWindows(windows, triggers, nothing)
