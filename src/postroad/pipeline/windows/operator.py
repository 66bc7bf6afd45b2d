"""Window operator: panes, triggers, lateness and timers of one window."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from postroad.pipeline.job import Refinement, TriggerType
from postroad.pipeline.windows.assigners import plus
from postroad.pipeline.windows.compiled import CompiledTrigger, CompiledWindow
from postroad.pipeline.windows.deltas import PaneDelta, WindowDelta
from postroad.pipeline.windows.encoding import decode_group
from postroad.pipeline.windows.panes import (
    Extent,
    Pane,
    PaneKey,
    WindowProgress,
    encode_row,
    head_row_key,
    pane_row_key,
)


class WindowOperator:
    """The panes of one window."""

    def __init__(self, window: CompiledWindow) -> None:
        self._window = window
        self._lines: dict[bytes, list[Pane]] = {}
        self.head = WindowProgress()
        # Rows to be stored, or deleted if there is no such pane any more.
        self._changed: set[PaneKey] = set()
        self._is_head_changed = False
        # What a batch has touched, with the triggers its segments have set off.
        self._touched: dict[PaneKey, set[int]] = {}
        self._timers = ProcessingTimeTimers(window)
        self._ends = {
            planned.index: WatermarkTimers(planned.trigger.threshold, self._upper_of)
            for planned in window.of_type(TriggerType.WATERMARK)
        }
        self._oblivion: WatermarkTimers | None = None
        if window.allowed_lateness_s is not None:
            self._oblivion = WatermarkTimers(window.allowed_lateness_s, self._upper_of)

    # Finding.

    def _find(self, key: PaneKey) -> Pane | None:
        line = self._lines.get(key.group, ())
        # Any latest time will do: it is the lower bound that is looked for.
        first, after = self._window.assignment.meeting(line, key.lower, key.lower)
        return next((pane for pane in line[first:after] if pane.lower == key.lower), None)

    def _upper(self, pane: Pane) -> float:
        return self._window.assignment.upper(pane.lower, pane.latest)

    def _upper_of(self, key: PaneKey) -> float | None:
        pane = self._find(key)
        return None if pane is None else self._upper(pane)

    def _all(self) -> Iterator[PaneKey]:
        for group, line in self._lines.items():
            for pane in line:
                yield PaneKey(group, pane.lower)

    def _await_end(self, key: PaneKey, pane: Pane) -> None:
        upper = self._upper(pane)
        for deadlines in self._ends.values():
            deadlines.add(key, upper)
        if self._oblivion is not None:
            self._oblivion.add(key, upper)

    # Rows.

    def load(self, group: bytes, content: Pane | WindowProgress) -> None:
        """Take what was stored; panes of a group may come in any order."""
        if isinstance(content, WindowProgress):
            self.head = content
            return
        line = self._lines.setdefault(group, [])
        place, _ = self._window.assignment.meeting(line, content.lower, content.latest)
        line.insert(place, content)
        key = PaneKey(group, content.lower)
        self._await_end(key, content)
        self._timers.on_loaded(key, content)

    def take_changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows that are not as they were; None for those to be deleted."""
        name = self._window.name
        if self._is_head_changed:
            yield head_row_key(name), encode_row(self.head)
            self._is_head_changed = False
        for key in sorted(self._changed):
            pane = self._find(key)
            yield pane_row_key(name, key), None if pane is None else encode_row(pane)
        self._changed.clear()

    # What happens.

    def apply(self, delta: WindowDelta, now_s: float) -> list[Extent]:
        """Add what a batch brings, and emit what it sets off."""
        for group, additions in sorted(delta.groups.items()):
            for addition in additions:
                self._add(group, addition)
        if delta.latest > self.head.latest:
            self.head.latest = delta.latest
            self._is_head_changed = True
        due, self._touched = self._touched, {}
        for deadlines in self._ends.values():
            for key in deadlines.take_passed(self.head.latest):
                due.setdefault(key, set())
        for key, indexes in self._take_timers(now_s).items():
            due.setdefault(key, set()).update(indexes)
        return self._emit(due, self._is_due) + self._forget()

    def on_time(self, now_s: float) -> list[Extent]:
        """Emit what timers set off."""
        due = self._take_timers(now_s)
        return self._emit(due, lambda planned, _, marks: planned.index in marks)

    def on_drained(self) -> list[Extent]:
        """There will be no more segments."""
        due: dict[PaneKey, set[int]] = {key: set() for key in self._all()}
        return self._emit(due, lambda planned, *_: planned.trigger.on is TriggerType.DRAINED)

    # Adding.

    def _add(self, group: bytes, addition: PaneDelta) -> None:
        window, line = self._window, self._lines.setdefault(group, [])
        first, after = window.assignment.meeting(line, addition.lower, addition.latest)
        if first == after:
            if self._is_late(addition):
                self._drop(group, addition)
                return
            line.insert(first, Pane(addition.lower, addition.latest, window.aggregation.init()))
            after += 1
        marks = set(addition.marks)
        for met in line[first:after]:
            key = PaneKey(group, met.lower)
            marks |= self._touched.pop(key, set())
            self._changed.add(key)
        pane = line[first]
        lower_before = pane.lower if pane.total else None
        for other in (*line[first + 1 : after], _as_pane(addition)):
            pane.absorb(other, window)
        del line[first + 1 : after]
        if pane.lower != lower_before:
            self._number(pane)
        self._on_touched(PaneKey(group, pane.lower), pane, marks)

    def _is_late(self, addition: PaneDelta) -> bool:
        if self._oblivion is None:
            return False
        upper = self._window.assignment.upper(addition.lower, addition.latest)
        return self._oblivion.is_passed(upper, self.head.latest)

    def _drop(self, group: bytes, addition: PaneDelta) -> None:
        self.head.late += addition.segments
        self._is_head_changed = True
        if not self._lines[group]:
            del self._lines[group]

    def _number(self, pane: Pane) -> None:
        """Say from where on the emissions of a pane are numbered that begins at a new time."""
        if self._window.is_session:
            # A session that is forgotten may have begun there, and its numbers are used up.
            pane.firings = max(pane.firings, self.head.firings_forgotten)

    def _on_touched(self, key: PaneKey, pane: Pane, marks: set[int]) -> None:
        self._touched[key] = marks
        self._changed.add(key)
        self._timers.on_touched(key)
        self._await_end(key, pane)

    # Timers.

    def _take_timers(self, now_s: float) -> dict[PaneKey, set[int]]:
        """The panes that timers emit now, each with these timers."""
        is_started = self._timers.start(self.head, now_s)
        due: dict[PaneKey, set[int]] = {}
        taken = self._timers.take_due(self.head, now_s)
        for index, keys in taken.items():
            for key in keys:
                due.setdefault(key, set()).add(index)
        self._is_head_changed |= is_started or bool(taken)
        return due

    # Emitting.

    def _is_due(self, planned: CompiledTrigger, pane: Pane, marks: set[int]) -> bool:
        """Whether a trigger emits a pane that was touched, or has ended."""
        index, threshold = planned.index, planned.trigger.threshold
        match planned.trigger.on:
            case TriggerType.SEGMENTS:
                return pane.total // threshold > pane.fired.get(index, 0) // threshold
            case TriggerType.WATERMARK:
                return self._ends[index].is_passed(self._upper(pane), self.head.latest)
            case TriggerType.TIMER | TriggerType.PUNCTUATION:
                return index in marks
            case TriggerType.DRAINED:
                return False

    def _emit(
        self,
        due: dict[PaneKey, set[int]],
        is_due: Callable[[CompiledTrigger, Pane, set[int]], bool],
    ) -> list[Extent]:
        """Emit those panes that triggers want and that have something new for them."""
        extents = []
        for key, marks in sorted(due.items()):
            pane = self._find(key)
            if pane is None:
                continue
            firing = [
                planned
                for planned in self._window.triggers
                if pane.has_news(planned.index) and is_due(planned, pane, marks)
            ]
            extents += [self._extent(planned, key.group, pane) for planned in firing]
            self._refine(key, pane, firing)
        return extents

    def _extent(self, planned: CompiledTrigger, group: bytes, pane: Pane) -> Extent:
        window = self._window
        pane.firings += 1
        pane.fired[planned.index] = pane.total
        return Extent(
            window=window.name,
            group=decode_group(group),
            lower=None if window.is_global else pane.lower,
            upper=None if window.is_global else self._upper(pane),
            value=window.aggregation.result(pane.state),
            segments=pane.segments,
            firing=pane.firings,
            trigger=planned.trigger.on,
            trigger_index=planned.index,
        )

    def _refine(self, key: PaneKey, pane: Pane, fired: Iterable[CompiledTrigger]) -> None:
        """Empty a pane that was emitted, if one of the triggers wants it."""
        refinements = {planned.trigger.refinement for planned in fired}
        if refinements:
            self._changed.add(key)
        if Refinement.DISCARDING in refinements:
            pane.state = self._window.aggregation.init()
            pane.segments = 0

    # Forgetting.

    def _forget(self) -> list[Extent]:
        """Drop the panes that have ended long ago.

        They cannot change any more: what timers, or the end of the job, would emit of them is
        emitted at once.
        """
        if self._oblivion is None:
            return []
        ended: dict[PaneKey, set[int]] = {
            key: set() for key in self._oblivion.take_passed(self.head.latest)
        }
        final = (TriggerType.TIMER, TriggerType.DRAINED)
        extents = self._emit(ended, lambda planned, *_: planned.trigger.on in final)
        for key in ended:
            self._remove(key)
        return extents

    def _remove(self, key: PaneKey) -> None:
        pane = self._find(key)
        if pane is None:
            return
        self._lines[key.group].remove(pane)
        if not self._lines[key.group]:
            del self._lines[key.group]
        self._changed.add(key)
        self._timers.on_forgotten(key)
        if self._window.is_session and pane.firings > self.head.firings_forgotten:
            self.head.firings_forgotten = pane.firings
            self._is_head_changed = True


def _as_pane(addition: PaneDelta) -> Pane:
    count = addition.segments
    return Pane(addition.lower, addition.latest, addition.state, count, count)


class WatermarkTimers:
    """The extents that have not ended long enough ago.

    An extent may be gone, or end later than planned, without a call of this: what `upper_of`
    says then is what counts.
    """

    def __init__(self, after_s: float, upper_of: Callable[[PaneKey], float | None]) -> None:
        """
        Args:
            after_s: how long after their end extents are wanted.
            upper_of: tells the end of an extent; None if it is not there.
        """
        self._after_s = float(after_s)
        self._upper_of = upper_of
        self._waiting: list[tuple[float, PaneKey]] = []
        self._keys: set[PaneKey] = set()

    def add(self, key: PaneKey, upper: float) -> None:
        """Wait for the end of an extent, unless it is waited for already."""
        if key not in self._keys:
            self._keys.add(key)
            heapq.heappush(self._waiting, (upper, key))

    def is_passed(self, upper: float, latest: float) -> bool:
        """Whether an extent has ended long enough ago."""
        return latest > plus(upper, self._after_s)

    def take_passed(self, latest: float) -> list[PaneKey]:
        """Those that have ended long enough ago, each once."""
        passed = []
        while self._waiting and self.is_passed(self._waiting[0][0], latest):
            expected, key = heapq.heappop(self._waiting)
            self._keys.remove(key)
            upper = self._upper_of(key)
            if upper is None:
                continue
            if upper > expected:
                self.add(key, upper)
            else:
                passed.append(key)
        return passed


class ProcessingTimeTimers:
    """The timers of a window, and what waits for them.

    When they go off is kept in the head of the window.
    """

    def __init__(self, window: CompiledWindow) -> None:
        self._after_s = {
            planned.index: planned.trigger.threshold
            for planned in window.of_type(TriggerType.TIMER)
        }
        # What was touched since the timer went off; some of it may be gone.
        self._waiting: dict[int, set[PaneKey]] = {index: set() for index in self._after_s}

    def on_loaded(self, key: PaneKey, pane: Pane) -> None:
        """A pane was stored, and may wait for some of the timers."""
        for index, waiting in self._waiting.items():
            if pane.has_news(index):
                waiting.add(key)

    def on_touched(self, key: PaneKey) -> None:
        """A pane has changed."""
        for waiting in self._waiting.values():
            waiting.add(key)

    def on_forgotten(self, key: PaneKey) -> None:
        """A pane is no more."""
        for waiting in self._waiting.values():
            waiting.discard(key)

    def start(self, head: WindowProgress, now_s: float) -> bool:
        """Start those for which something waits; whether there are any that did not run."""
        idle = [
            index for index, waiting in self._waiting.items() if waiting and index not in head.due_s
        ]
        for index in idle:
            head.due_s[index] = now_s + self._after_s[index]
        return bool(idle)

    def take_due(self, head: WindowProgress, now_s: float) -> dict[int, set[PaneKey]]:
        """Those that go off now, each with the panes it emits."""
        passed = [index for index, due_s in sorted(head.due_s.items()) if due_s <= now_s]
        for index in passed:
            del head.due_s[index]
        taken = {index: self._waiting[index] for index in passed if index in self._waiting}
        self._waiting |= {index: set() for index in taken}
        return taken
