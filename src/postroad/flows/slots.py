"""How many flows of each kind run at the same time, where that is limited."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .definition import FlowDefinition
from .life import FlowStatus

ACTIVE_STATUSES = frozenset({FlowStatus.RUNNING, FlowStatus.RETRYING})
"""Those that take up room."""

_UNLIMITED = 10_000


class ConcurrencySlots:
    """Counts the flows that run, and those that are about to."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        # Flows that are about to run, and of which kind they are.
        self._reserved: dict[int, str] = {}

    def add(self, name: str, number: int = 1) -> None:
        """So many more run, or fewer."""
        self._running[name] += number
        if not self._running[name]:
            del self._running[name]

    def reserve(self, name: str, id: int) -> None:
        """Count a flow already that is about to run."""
        if id not in self._reserved:
            self._reserved[id] = name
            self.add(name)

    def release(self, id: int) -> str | None:
        """A flow that was about to run is counted by itself now, or does not; which kind it is."""
        if (name := self._reserved.pop(id, None)) is not None:
            self.add(name, -1)
        return name

    def free(self, definition: FlowDefinition[Any, Any]) -> int:
        """How many more of a kind may run, at least."""
        limit = definition.concurrency
        return _UNLIMITED if limit is None else max(limit - self._running[definition.name], 0)

    def count(self, name: str) -> int:
        """How many of a kind run."""
        return self._running[name]

    @property
    def total(self) -> int:
        """How many run."""
        return self._running.total()
