"""Windows done the slow way: every segment is kept, and every extent is recomputed from scratch.

Nothing here is taken from the package but the words of a job, so that what both say is true twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from postroad.pipeline.job import Refinement, Trigger, TriggerType, Window, WindowType

STEPS_MAX = 110
"""Extents begin within so many steps of zero."""


def tenths(seconds: float | None) -> int:
    """Times are whole tenths of a second here."""
    assert seconds is not None
    whole = round(seconds * 10)
    assert whole / 10 == seconds
    return whole


@dataclasses.dataclass(eq=False)
class Item:
    """A segment in one extent of its group; sessions have no lower bound of their own."""

    group: str
    time: int
    value: int | float
    lower: int | None
    seen_by: set[int] = dataclasses.field(default_factory=set)
    """Triggers that have emitted it."""
    is_discarded: bool = False


@dataclasses.dataclass(frozen=True)
class Emission:
    """What a model expects to be emitted, but for its number."""

    group: str
    lower: float | None
    upper: float | None
    value: Any
    segments: int
    trigger_index: int

    @property
    def place(self) -> tuple[Any, ...]:
        return self.group, self.lower or 0.0, self.trigger_index


class Model:
    """One window and its triggers."""

    def __init__(self, window: Window, triggers: list[Trigger]) -> None:
        self._window = window
        self._triggers = triggers
        self._items: list[Item] = []
        self._latest: int | None = None
        self._due_s: dict[int, float] = {}
        self.late = 0

    # How time is cut.

    def _lowers(self, time: int) -> Iterator[int | None]:
        window = self._window
        if window.type in (WindowType.GLOBAL, WindowType.SESSION):
            yield None
            return
        range_s = tenths(window.range_s)
        slide_s = range_s if window.type is WindowType.FIXED else tenths(window.slide_s)
        for step in range(-STEPS_MAX, STEPS_MAX):
            if step * slide_s <= time < step * slide_s + range_s:
                yield step * slide_s

    def _panes(self, items: Iterable[Item]) -> list[list[Item]]:
        if self._window.type is WindowType.SESSION:
            return naive_sessions(items, tenths(self._window.gap_s))
        panes: dict[Any, list[Item]] = {}
        for item in items:
            panes.setdefault((item.group, item.lower), []).append(item)
        return list(panes.values())

    def _bounds(self, pane: list[Item]) -> tuple[int, int] | None:
        window = self._window
        if window.type is WindowType.GLOBAL:
            return None
        if window.type is WindowType.SESSION:
            times = [item.time for item in pane]
            return min(times), max(times) + tenths(window.gap_s)
        lower = pane[0].lower
        assert lower is not None
        return lower, lower + tenths(window.range_s)

    def _has_passed(self, pane: list[Item], after_s: float, latest: int | None) -> bool:
        bounds = self._bounds(pane)
        return bounds is not None and latest is not None and latest > bounds[1] + tenths(after_s)

    def _is_forgotten(self, pane: list[Item]) -> bool:
        lateness_s = self._window.allowed_lateness_s
        waits = [one.threshold for one in self._triggers if one.on is TriggerType.WATERMARK]
        if lateness_s is None and not waits:
            # A week, or for ever, which is all the same to times that are so close.
            return False
        return self._has_passed(pane, max([lateness_s or 0.0, *waits]), self._latest)

    # What happens.

    def apply(self, batch: list[tuple[str, float, int | float]], now_s: float) -> list[Emission]:
        """Take a batch of group, time and value."""
        fresh = [
            Item(group, tenths(time), value, lower)
            for group, time, value in batch
            for lower in self._lowers(tenths(time))
        ]
        # Panes of which nothing was there before, and that had ended too long ago already.
        dropped = [
            pane
            for pane in self._panes(self._items + fresh)
            if not set(pane) & set(self._items) and self._is_forgotten(pane)
        ]
        self.late += sum(map(len, dropped))
        taken = set(fresh) - {item for pane in dropped for item in pane}
        self._items += [item for item in fresh if item in taken]
        times = [tenths(time) for _, time, _ in batch]
        self._latest = max(
            [*times, *([] if self._latest is None else [self._latest])], default=None
        )
        emissions = self._fire(taken, self._ring(now_s, is_touched=bool(taken)))
        return emissions + self._forget()

    def _ring(self, now_s: float, *, is_touched: bool) -> set[int]:
        """Timers that go off."""
        ringing = set()
        for index, trigger in enumerate(self._triggers):
            if trigger.on is TriggerType.TIMER:
                if is_touched:
                    self._due_s.setdefault(index, now_s + trigger.threshold)
                if self._due_s.get(index, now_s + 1) <= now_s:
                    del self._due_s[index]
                    ringing.add(index)
        return ringing

    def on_time(self, now_s: float) -> list[Emission]:
        ringing = self._ring(now_s, is_touched=False)
        return self._emit(lambda index, trigger, pane: index in ringing)

    def on_drained(self) -> list[Emission]:
        return self._emit(lambda index, trigger, pane: trigger.on is TriggerType.DRAINED)

    def _fire(self, taken: set[Item], ringing: set[int]) -> list[Emission]:
        def is_due(index: int, trigger: Trigger, pane: list[Item]) -> bool:
            match trigger.on:
                case TriggerType.SEGMENTS:
                    before = sum(index in item.seen_by for item in pane)
                    multiples = range(before + 1, len(pane) + 1)
                    return any(number % trigger.threshold == 0 for number in multiples)
                case TriggerType.WATERMARK:
                    return self._has_passed(pane, trigger.threshold, self._latest)
                case TriggerType.PUNCTUATION:
                    return any(item in taken and is_punctuation(item.value) for item in pane)
                case TriggerType.TIMER:
                    return index in ringing
                case TriggerType.DRAINED:
                    return False

        return self._emit(is_due)

    def _emit(self, is_due: Any) -> list[Emission]:
        emissions = []
        for pane in self._panes(self._items):
            firing = [
                (index, trigger)
                for index, trigger in enumerate(self._triggers)
                if any(not item.is_discarded for item in pane)
                and any(index not in item.seen_by for item in pane)
                and is_due(index, trigger, pane)
            ]
            emissions += [self._emission(pane, index) for index, _ in firing]
            for index, trigger in firing:
                for item in pane:
                    item.seen_by.add(index)
                    item.is_discarded |= trigger.refinement is Refinement.DISCARDING
        return emissions

    def _emission(self, pane: list[Item], index: int) -> Emission:
        bounds = self._bounds(pane)
        kept = [item.value for item in pane if not item.is_discarded]
        return Emission(
            group=pane[0].group,
            lower=None if bounds is None else bounds[0] / 10,
            upper=None if bounds is None else bounds[1] / 10,
            value=naive_result(self._window.aggregation, kept),
            segments=len(kept),
            trigger_index=index,
        )

    def _forget(self) -> list[Emission]:
        final = (TriggerType.TIMER, TriggerType.DRAINED)
        emissions = self._emit(
            lambda index, trigger, pane: trigger.on in final and self._is_forgotten(pane)
        )
        self._items = [
            item
            for pane in self._panes(self._items)
            if not self._is_forgotten(pane)
            for item in pane
        ]
        return emissions


def is_punctuation(value: int | float) -> bool:
    return value == 3


def naive_sessions(items: Iterable[Item], gap: int) -> list[list[Item]]:
    """Join any two sessions that have two segments closer than the gap, until there are none."""
    sessions = [[item] for item in items]
    while True:
        for one in sessions:
            other = next(
                (it for it in sessions if it is not one and _are_close(one, it, gap)), None
            )
            if other is not None:
                one += other
                sessions = [session for session in sessions if session is not other]
                break
        else:
            return sessions


def _are_close(left: list[Item], right: list[Item], gap: int) -> bool:
    return any(a.group == b.group and abs(a.time - b.time) < gap for a in left for b in right)


def naive_result(aggregation: str, values: list[int | float]) -> Any:
    """What some values add up to, exactly, and then rounded."""
    total = sum(map(Fraction, values), Fraction(0))
    match aggregation:
        case "count":
            return len(values)
        case "sum":
            has_floats = any(isinstance(value, float) for value in values)
            return float(total) if has_floats else int(total)
        case "average":
            return float(total / len(values))
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "collect":
            return sorted(values)
        case other:
            raise ValueError(other)
