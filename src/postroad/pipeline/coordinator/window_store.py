"""Stores windows and emits their results as new roots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import FailedRoot, SegmentAttempt
from postroad.pipeline.coordinator.window_deltas import read_dropped
from postroad.pipeline.functions import normalize_result
from postroad.pipeline.job import Job, RetryPolicy, Segment, Window, WindowType
from postroad.pipeline.windows import Extent, JobWindowDelta, JobWindowState, encode_group
from postroad.pipeline.windows.aggregations import BUILT_IN, aggregation_of
from postroad.pipeline.windows.assigners import assignment_of
from postroad.pipeline.windows.encoding import decode_group
from postroad.pipeline.windows.panes import (
    Pane,
    decode_row,
    decode_window_progress,
    head_row_key,
)


class WindowStore:
    """Changes the windows, and puts what they emit into the pen."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self._plan = program.windows
        self._state = JobWindowState(self._plan)
        # What the store must say for the state to be that of the store: after a commit that
        # failed it says something else.
        self._version = 0

    def leave_out(self, names: Collection[str]) -> None:
        """Somebody else keeps some of the windows."""
        self._plan = self._program.windows.select(names, inverted=True)
        self._state, self._version = JobWindowState(self._plan), 0

    def _load(self, pen: JobStore) -> JobWindowState:
        version = pen.panes_version()
        if version != self._version:
            self._state, self._version = JobWindowState(self._plan, pen.panes()), version
        return self._state

    def apply(self, pen: JobStore, delta: JobWindowDelta, now_ms: int) -> None:
        """Add what a batch brings."""
        self._keep(pen, self._load(pen).apply(delta, now_ms / 1000), now_ms)

    def fire_timers(self, pen: JobStore, now_ms: int) -> None:
        """Emit what timers set off."""
        if self._plan.windows:
            self._keep(pen, self._load(pen).on_time(now_ms / 1000), now_ms)

    def fire_drained(self, pen: JobStore, now_ms: int) -> int:
        """Emit what waits for the end; returns how much that is."""
        if not self._plan.windows:
            return 0
        extents = self._load(pen).on_drained()
        self._keep(pen, extents, now_ms)
        return len(extents)

    def _keep(self, pen: JobStore, extents: Iterable[Extent], now_ms: int) -> None:
        for extent in extents:
            for root in emit_roots(self._program, extent, now_ms):
                if isinstance(root, EmittedRoot):
                    pen.insert_root(root.root, root.task, root.segment, now_ms)
                else:
                    pen.record_failures([root], {root.task: RetryPolicy()}, now_ms, lambda: 0.0)
        changes = self._state.take_changes()
        if changes:
            self._version = pen.write_panes(changes)


class EmittedRoot(msgspec.Struct, frozen=True):
    """A root that no input gave."""

    root: int
    task: str
    segment: bytes
    place: str
    """What tells it from all others of the task."""


def emit_roots(
    program: CompiledJob, extent: Extent, now_ms: int
) -> Iterator[EmittedRoot | FailedRoot]:
    """The segments that a trigger makes of an extent: the same ones whenever it is asked."""
    task = program.windows.by_name[extent.window].window.task
    trigger = program.job.triggers[extent.trigger_index]
    place = f"{extent.window}/{encode_group(extent.group).hex()}/{extent.lower}/{extent.firing}"
    plain: Segment = {
        "window": extent.window,
        "group": extent.group,
        "lower": extent.lower,
        "upper": extent.upper,
        "value": extent.value,
        "segments": extent.segments,
    }
    try:
        emit = None if trigger.emit is None else program.resolve(trigger.emit)
        made = [plain] if emit is None else normalize_result(emit(extent))
        encoded = [encode_segment(segment) for segment in made]
    except Exception as error:
        attempt = SegmentAttempt(0, now_ms, task, f"{type(error).__name__}: {error}"[:2_000])
        root = program.ack_ids.root(task, "", place)
        yield FailedRoot(root, task, 0, encode_segment(plain), attempt, [], is_permanent=True)
        return
    for ordinal, segment in enumerate(encoded):
        own = f"{place}/{ordinal}"
        yield EmittedRoot(program.ack_ids.root(task, "", own), task, segment, own)


class WindowExtentView(msgspec.Struct, frozen=True, kw_only=True):
    """What a window holds of one group over one stretch of time."""

    group: Any
    lower: float | None
    """Where it begins, in seconds; None in a global window."""
    upper: float | None
    value: Any
    """What a trigger would emit now; of an aggregation that is not built in, its state."""
    segments: int


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """A window of a job."""

    name: str
    task: str
    type: str
    aggregation: str
    late: int
    """Segments that came too late for it."""
    extents: list[WindowExtentView]
    """Some of what it holds."""


def read_late(store: JobStore, windows: Iterable[str]) -> dict[str, int]:
    """For each window: how many segments it dropped because they were too late."""
    heads = {name: store.pane(head_row_key(name)) for name in windows}
    dropped = read_dropped(store)
    return {
        name: dropped.get(name, 0) if head is None else decode_window_progress(head).late
        for name, head in heads.items()
    }


def read_windows(store: JobStore, job: Job, limit: int) -> list[WindowView]:
    """What the windows of a job hold: so many extents of all together at most."""
    late = read_late(store, (it.name for it in job.windows))
    extents: dict[str, list[WindowExtentView]] = {it.name: [] for it in job.windows}
    windows = {it.name: it for it in job.windows}
    # Each window has one more row, which is none of its extents.
    for key, value in store.panes(limit + len(windows)):
        row = decode_row(key, value)
        if row.window in windows and isinstance(row.content, Pane):
            extents[row.window].append(_view_pane(windows[row.window], row.group, row.content))
    return [
        WindowView(
            name=it.name,
            task=it.task,
            type=it.type.value,
            aggregation=it.aggregation,
            late=late[it.name],
            extents=extents[it.name],
        )
        for it in job.windows
    ]


def _view_pane(window: Window, group: bytes, pane: Pane) -> WindowExtentView:
    is_global = window.type is WindowType.GLOBAL
    value = pane.state
    if window.aggregation in BUILT_IN:
        value = aggregation_of(window, lambda _: None).result(pane.state)
    return WindowExtentView(
        group=decode_group(group),
        lower=None if is_global else pane.lower,
        upper=None if is_global else assignment_of(window).upper(pane.lower, pane.latest),
        value=value,
        segments=pane.segments,
    )
