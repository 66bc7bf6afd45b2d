"""When extents are emitted, what is left of them, and what is stored."""

from typing import Any

import msgspec
import pytest

from postroad.pipeline.job import Segment, Trigger, TriggerType, Window, WindowType
from postroad.pipeline.windows import (
    CompiledWindows,
    Extent,
    JobWindowDelta,
    WindowDeltaBuilder,
)
from tests.support.pipeline.seen_windows import SeenWindowState

FIXED = Window(
    name="w", task="t", type=WindowType.FIXED, aggregation="count", time_key="at", range_s=10
)
SESSION = Window(
    name="w", task="t", type=WindowType.SESSION, aggregation="count", time_key="at", gap_s=10
)
GLOBAL = Window(name="w", task="t", type=WindowType.GLOBAL, aggregation="count")


def on(type: TriggerType, threshold: float = 0.0, **rest: Any) -> Trigger:
    return Trigger(window="w", on=type, threshold=threshold, **rest)


class Bench:
    """A state that is fed with times."""

    def __init__(self, window: Window, *triggers: Trigger, **changes: Any) -> None:
        window = msgspec.structs.replace(window, **changes)
        self.plan = CompiledWindows(
            [window], triggers, lambda path: lambda segment: segment["is_last"]
        )
        self.state = SeenWindowState(self.plan)

    def delta(self, segments: list[Segment], group: Any = "g") -> JobWindowDelta:
        maker = WindowDeltaBuilder(self.plan)
        for segment in segments:
            maker.add("t", group, segment)
        return maker.delta

    def feed(self, *times: float, group: Any = "g", now_s: float = 0.0) -> list[Extent]:
        segments: list[Segment] = [{"at": time, "is_last": False} for time in times]
        return self.state.apply(self.delta(segments, group), now_s)


def brief(extents: list[Extent]) -> list[tuple[float | None, Any, int]]:
    return [(extent.lower, extent.value, extent.firing) for extent in extents]


def test_an_extent_says_what_it_is() -> None:
    bench = Bench(
        FIXED, on(TriggerType.DRAINED), on(TriggerType.WATERMARK, 1), allowed_lateness_s=100
    )
    assert bench.feed(3, 11, group=("a", 1)) == []
    assert bench.feed(11.5, group="b") == [
        Extent(
            window="w",
            group=["a", 1],
            lower=0.0,
            upper=10.0,
            value=1,
            segments=1,
            firing=1,
            trigger=TriggerType.WATERMARK,
            trigger_index=1,
        )
    ]


def test_global_extents_have_no_bounds() -> None:
    bench = Bench(GLOBAL, on(TriggerType.SEGMENTS, 1))
    (extent,) = bench.feed(1, 2)
    assert (extent.lower, extent.upper, extent.value) == (None, None, 2)


class TestWatermark:
    def test_what_no_watermark_ends_is_kept_for_a_week(self) -> None:
        bench = Bench(FIXED, on(TriggerType.SEGMENTS, 100))
        week_s = 7 * 86_400
        bench.feed(1, week_s + 9)
        assert len(bench.state) == 2
        bench.feed(week_s + 11)
        assert len(bench.state) == 2, "the first one is gone, and there is another"

    def test_what_waits_for_the_end_of_the_job_is_kept_until_then(self) -> None:
        bench = Bench(FIXED, on(TriggerType.DRAINED))
        bench.feed(1, 1e9)
        bench.feed(2)
        assert brief(bench.state.on_drained()) == [(0.0, 2, 1), (1e9, 1, 1)]

    def test_a_session_that_goes_on_before_its_end_is_waited_for(self) -> None:
        bench = Bench(SESSION, on(TriggerType.WATERMARK), allowed_lateness_s=0)
        bench.feed(0)
        bench.feed(5)
        assert bench.feed(12, group="other") == []
        assert brief(bench.feed(15.5, group="other")) == [(0.0, 2, 1)]


class TestTimer:
    def test_it_starts_with_the_first_change(self) -> None:
        bench = Bench(GLOBAL, on(TriggerType.TIMER, 5))
        assert bench.state.next_timer_s is None
        assert bench.feed(1, now_s=100) == []
        assert bench.state.next_timer_s == 105
        assert bench.feed(1, now_s=103) == []
        assert bench.state.on_time(104.9) == []
        assert brief(bench.state.on_time(105)) == [(None, 2, 1)]
        assert bench.state.next_timer_s is None
        assert bench.state.on_time(200) == []


class TestSessions:
    def test_a_punctuation_on_either_side_counts(self) -> None:
        bench = Bench(SESSION, on(TriggerType.PUNCTUATION, predicate="m:is_last"))
        bench.feed(9)
        sides: list[Segment] = [{"at": 0, "is_last": True}, {"at": 18, "is_last": False}]
        assert brief(bench.state.apply(bench.delta(sides), 0.0)) == [(0.0, 3, 1)]


class TestRows:
    def test_only_what_has_changed(self) -> None:
        bench = Bench(FIXED)
        bench.feed(1, 15)
        assert len(bench.state.take_changes()) == 3, "two panes and the window itself"
        bench.feed(2)
        (row,) = bench.state.take_changes().values()
        assert row is not None
        assert bench.state.take_changes() == {}

    def test_forgotten_panes_are_deleted(self) -> None:
        bench = Bench(FIXED, allowed_lateness_s=0)
        bench.feed(1)
        (key,) = (key for key in bench.state.take_changes() if len(key) > len(b"\x91\xa1w"))
        bench.feed(11)
        assert bench.state.take_changes()[key] is None

    def test_rows_of_other_windows_are_left_alone(self) -> None:
        bench = Bench(FIXED)
        bench.feed(1)
        rows = [(key, row) for key, row in bench.state.take_changes().items() if row is not None]
        other = CompiledWindows([msgspec.structs.replace(FIXED, name="v")], [], lambda path: None)
        state = SeenWindowState(other, rows)
        assert len(state) == 0
        assert state.take_changes() == {}

    def test_a_foreign_row_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not the key of a row"):
            SeenWindowState(Bench(FIXED).plan, [(msgspec.msgpack.encode([1, 2]), b"")])
