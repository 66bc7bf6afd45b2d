"""When the timers of a window go off. Pure: time comes in as an argument.

A timer starts with the first change after it went off, so that one with nothing to emit needs no
attention.
"""

from __future__ import annotations

from postroad.pipeline.job import TriggerType

from .panes import WindowProgress, Pane, PaneKey
from .plan import CompiledWindow


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
