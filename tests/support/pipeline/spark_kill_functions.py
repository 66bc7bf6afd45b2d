"""What the jobs of `tests.support.pipeline.spark_kill_job` do: workers import it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from postroad.pipeline import JsonLinesInput, Segment
from postroad.pipeline.connectors import Position, Split

POISON_EVERY = 997
"""Nobody can do these."""
FLAKY_EVERY = 500
"""So many calls of a process, and one fails that will succeed the next time."""
WORK_S = 0.0001
"""Whoever is killed shall be killed at work."""

DEBIT, CREDIT = "debit", "credit"
END = "end"

_calls = itertools.count(1)


def book(segment: Segment) -> list[Segment]:
    """Both sides of a payment."""
    return [segment | {"side": DEBIT}, segment | {"side": CREDIT}]


def check(segment: Segment) -> Segment:
    """Nobody can credit some payments, so that half of them is done and the other is not."""
    if segment["side"] == CREDIT:
        refuse_poison(segment)
    return segment


def spread(segment: Segment) -> list[Segment]:
    """Nothing, one or two."""
    return [{"n": segment["n"], "part": part} for part in range(segment["n"] % 3)]


def refuse_poison(segment: Segment) -> Segment:
    time.sleep(WORK_S)
    if segment["n"] % POISON_EVERY == 0:
        raise ValueError("nobody can do this")
    if next(_calls) % FLAKY_EVERY == 0:
        raise ConnectionError("not this time")
    return segment


class GrowingLines(JsonLinesInput):
    """Files of lines that become more, until there is one that is called `end`."""

    is_bounded = False

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory}/*.jsonl", split_bytes=8_000)
        self._end = Path(directory) / END

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        is_end = self._end.exists()
        slices = await super().plan_splits(after, segments)
        # What came before the end is in slices by now.
        self.is_bounded = is_end and not slices
        return slices
