"""When something was wrong: the excuse of a machine that gave up its peer."""

from __future__ import annotations

from collections.abc import Iterable


class Disturbances:
    def __init__(self) -> None:
        self._stretches: list[tuple[float, float]] = []

    def add(self, start: float, end: float) -> None:
        self._stretches.append((start, end))

    def overlaps(self, start: float, end: float) -> list[tuple[float, float]]:
        clipped = [(max(start, first), min(end, last)) for first, last in self._stretches]
        return [(first, last) for first, last in clipped if first < last]


def disturbed_s(sources: Iterable[Disturbances], start: float, end: float) -> float:
    total = 0.0
    covered = start
    for first, last in sorted(part for source in sources for part in source.overlaps(start, end)):
        total += max(0.0, last - max(first, covered))
        covered = max(covered, last)
    return total
