"""Stores windows and emits their results as new roots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import FailedRoot, SegmentAttempt
from postroad.pipeline.functions import normalize_result
from postroad.pipeline.job import RetryPolicy, Segment
from postroad.pipeline.windows import Extent, JobWindowDelta, JobWindowState, encode_group


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
