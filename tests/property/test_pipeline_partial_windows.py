"""Windows as sums of columns: the extents and late segments of the brute-force model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.coordinator.window_deltas import CommittedDelta
from postroad.pipeline.job import Trigger, TriggerType, Window, WindowType
from postroad.pipeline.spark.window_rows import read_deltas, watermark_row, write_panes
from postroad.pipeline.windows.aggregations import BUILT_IN
from postroad.pipeline.windows.compiled import NO_TIME, CompiledWindow
from postroad.pipeline.windows.panes import Extent
from postroad.pipeline.windows.partials import (
    PartialPanes,
    PartialWindow,
    decode_ordered,
    encode_ordered,
)
from tests.property.test_pipeline_windows import (
    EVENTS,
    LENGTHS,
    Event,
    as_segment,
    expected,
    order_of,
    plan_of,
    told,
)
from tests.support.pipeline.window_model import Model


@st.composite
def cases(draw: st.DrawFn) -> tuple[Window, Trigger]:
    wait_s = draw(st.sampled_from([0.0, 1.0, 2.5]))
    length_s = draw(LENGTHS)
    slides = [it for it in (0.1, 0.5, 1.0, 2.0) if it <= length_s]
    window = Window(
        name="w",
        task="task",
        type=draw(st.sampled_from([WindowType.FIXED, WindowType.SLIDING])),
        aggregation=draw(st.sampled_from(sorted(BUILT_IN))),
        key="value",
        time_key="at",
        range_s=length_s,
        slide_s=draw(st.sampled_from(slides)),
        allowed_lateness_s=draw(st.none() | st.just(wait_s)),
    )
    return window, Trigger(window="w", on=TriggerType.WATERMARK, threshold=wait_s)


class Grouped:
    """What Spark does: groups rows, and lets those go that the watermark has passed."""

    def __init__(self, window: CompiledWindow, directory: Path) -> None:
        self._window = PartialWindow(window)
        self._directory = directory
        self._latest_s = NO_TIME
        self._panes: dict[tuple[int, bytes], list[dict[str, Any]]] = {}
        self.late = 0

    def apply(self, parts: list[list[Event]]) -> list[Extent]:
        window = self._window
        files = []
        for events in parts:
            panes = PartialPanes(window)
            for event in events:
                segment = as_segment(event)
                panes.add(window.prepare(event[0], segment, order_of(event)))
            if panes.panes:
                files.append(write_panes(panes, self._directory))
        if not files:
            return []
        before = window.closed_index(self._latest_s)
        self._latest_s = max(self._latest_s, *(it.latest_s for it in files))
        closed = window.closed_index(self._latest_s)
        assert closed is not None
        if before is not None:
            counts = [it for file in files for it in file.counts.items()]
            self.late += sum(count for index, count in counts if index <= before)
        paths = [it.path for it in files]
        delta = CommittedDelta(1, paths, before, closed)
        columns = window.columns
        mark = watermark_row(columns, closed).column("at")[0].as_py()
        for batch in read_deltas(columns, [delta], paths):
            for row in batch.to_pylist():
                assert row["at"] < mark, "the row that moves the watermark must be the last"
                self._panes.setdefault((row["at"], row["grp"]), []).append(row)
        passed = sorted(key for key in self._panes if key[0] <= mark - columns.ahead)
        return [self._extent(*key, self._panes.pop(key)) for key in passed]

    def _extent(self, at: int, group: bytes, rows: list[dict[str, Any]]) -> Extent:
        random.Random(len(rows)).shuffle(rows)
        names = [name for name in rows[0] if name.startswith("limb_")]
        extremes = [row["extreme"] for row in rows if row.get("extreme") is not None]
        choose = max if self._window.columns.is_max else min
        return self._window.extent(
            group,
            at - (1 << 51),
            sum(row["n"] for row in rows),
            [sum(row[name] for row in rows) for name in names],
            any(row.get("floats") for row in rows),
            choose(extremes) if extremes else None,
            [row["others"] for row in rows if row.get("others") is not None],
        )


@given(
    cases(),
    st.lists(st.lists(st.lists(EVENTS, max_size=6), min_size=1, max_size=3), max_size=6),
)
def test_sums_of_columns_are_the_extents_of_the_model(
    tmp_path_factory: Any, case: tuple[Window, Trigger], batches: list[list[list[Event]]]
) -> None:
    window, trigger = case
    plan = plan_of(window, [trigger])
    assert PartialWindow.fits(plan.windows[0])
    grouped = Grouped(plan.windows[0], tmp_path_factory.mktemp("files"))
    model = Model(window, [trigger])
    for parts in batches:
        events = [event for part in parts for event in part]
        assert told(grouped.apply(parts)) == expected(model.apply(events, 0.0))
        assert grouped.late == model.late


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
CLOSE = st.integers(2**53 - 3, 2**53 + 3) | st.just(2.0**53) | st.sampled_from([0, 0.0, 1, 1.0])


@given(st.lists(NUMBERS | CLOSE | st.text(), min_size=1))
def test_encoded_values_compare_as_the_values_do(values: list[int | float | str]) -> None:
    values = [value + 0.0 if isinstance(value, float) else value for value in values]
    for value in values:
        decoded = decode_ordered(encode_ordered(value))
        assert (type(decoded), decoded) == (type(value), value)

    def rank(value: Any) -> tuple[bool, Any, bool]:
        return isinstance(value, str), value, isinstance(value, float)

    assert sorted(values, key=rank) == [
        decode_ordered(it) for it in sorted(map(encode_ordered, values))
    ]
