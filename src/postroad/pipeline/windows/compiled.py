"""Windows and triggers of a job, with what they name found. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.pipeline.job import Segment, Trigger, TriggerType, Window, WindowType
from postroad.pipeline.windows.aggregations import BUILT_IN, aggregation_of
from postroad.pipeline.windows.assigners import assignment_of
from postroad.pipeline.windows.encoding import time_of

NO_TIME = float("-inf")
"""The time of segments in windows that do not ask for it."""


KEEP_S = 7 * 86_400.0
"""How long after its end a window takes segments that nobody told how long, and that no watermark
ends: a week, because without any limit what it holds would grow for ever."""


class CompiledTrigger(msgspec.Struct, frozen=True):
    """A trigger, and where in the job's list it is."""

    index: int
    trigger: Trigger
    predicate: Callable[[Segment], object] | None


class CompiledWindow:
    """A window with all that is needed to fill and empty it."""

    def __init__(
        self, window: Window, triggers: list[CompiledTrigger], resolve: Callable[[str], Any]
    ) -> None:
        self.window = window
        self.name = window.name
        self.triggers = triggers
        self.assignment = assignment_of(window)
        self.aggregation = aggregation_of(window, resolve)
        self.is_global = window.type is WindowType.GLOBAL
        self.is_session = window.type is WindowType.SESSION
        self.allowed_lateness_s = self._allowed_lateness_s()
        self._is_built_in = window.aggregation in BUILT_IN
        if not self.is_global and window.time_key is None:
            raise ConfigError(f"window {window.name!r} needs a time_key")

    def of_type(self, *types: TriggerType) -> list[CompiledTrigger]:
        """The triggers of some types."""
        return [planned for planned in self.triggers if planned.trigger.on in types]

    def _allowed_lateness_s(self) -> float | None:
        """How long it keeps extents: not shorter than a trigger waits for later segments."""
        waits = [planned.trigger.threshold for planned in self.of_type(TriggerType.WATERMARK)]
        if self.window.allowed_lateness_s is not None:
            return max(self.window.allowed_lateness_s, *waits, 0.0)
        if waits:
            return float(max(waits))
        # What waits for the end of a job is there until then.
        is_final = {planned.trigger.on for planned in self.triggers} == {TriggerType.DRAINED}
        return None if is_final else KEEP_S

    def time(self, segment: Segment) -> float:
        """The time of a segment.

        Raises:
            InvalidSegmentError: it has none.
        """
        time_key = self.window.time_key
        return NO_TIME if time_key is None else time_of(segment, time_key)

    def part(self, segment: Segment, order: bytes) -> Any:
        """The state of one segment."""
        aggregation = self.aggregation
        part = aggregation.add_in_order(aggregation.init(), segment, order)
        if not self._is_built_in and _stored(part) != part:
            raise UsageError(
                f"window {self.name!r}: the state {part!r:.80} is another one after it was stored; "
                "make it of lists and dicts, and not of tuples or other objects"
            )
        return part

    def marks(self, segment: Segment) -> list[int]:
        """The triggers whose predicate says yes to a segment."""
        return [
            planned.index
            for planned in self.triggers
            if planned.predicate is not None and planned.predicate(segment)
        ]


def _stored(state: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state))


class CompiledWindows:
    """All windows of a job."""

    def __init__(
        self,
        windows: Sequence[Window],
        triggers: Sequence[Trigger],
        resolve: Callable[[str], Any],
    ) -> None:
        """
        Args:
            resolve: finds what an import path names.

        Raises:
            ConfigError: a window or trigger cannot work.
        """
        planned = [_planned(index, trigger, resolve) for index, trigger in enumerate(triggers)]
        self.windows = [
            CompiledWindow(
                window, [one for one in planned if one.trigger.window == window.name], resolve
            )
            for window in windows
        ]
        self.by_name = {window.name: window for window in self.windows}
        self._of_tasks: dict[str, list[CompiledWindow]] = {}
        for window in self.windows:
            self._of_tasks.setdefault(window.window.task, []).append(window)
        for trigger in triggers:
            if trigger.window not in self.by_name:
                raise ConfigError(
                    f"a trigger names the window {trigger.window!r}, which is not there"
                )

    def select(self, names: Collection[str], *, inverted: bool = False) -> CompiledWindows:
        """Some of them, or all but some."""
        chosen = copy.copy(self)
        chosen.windows = [it for it in self.windows if (it.name in names) != inverted]
        chosen.by_name = {window.name: window for window in chosen.windows}
        chosen._of_tasks = {}
        for window in chosen.windows:
            chosen._of_tasks.setdefault(window.window.task, []).append(window)
        return chosen

    def of_task(self, task: str) -> list[CompiledWindow]:
        """The windows of a task."""
        return self._of_tasks.get(task, [])


def _planned(index: int, trigger: Trigger, resolve: Callable[[str], Any]) -> CompiledTrigger:
    if trigger.on is TriggerType.SEGMENTS and not trigger.threshold > 0:
        raise ConfigError(f"a trigger of {trigger.window!r} has no threshold above 0")
    if trigger.on is not TriggerType.PUNCTUATION:
        return CompiledTrigger(index, trigger, None)
    if trigger.predicate is None:
        raise ConfigError(f"a punctuation trigger of {trigger.window!r} has no predicate")
    return CompiledTrigger(index, trigger, resolve(trigger.predicate))
