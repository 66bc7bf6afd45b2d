"""A function called for many segments, as quickly as Python can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroad.pipeline.functions import Function


def call_all(
    function: Function, segments: Sequence[object]
) -> tuple[list[Any], dict[int, Exception]]:
    """Call a function with each segment, or whatever else it takes.

    Returns:
        What it returned, one for each, and what it raised, by position.
    """
    results: list[Any] = []
    raised: dict[int, Exception] = {}
    left = iter(segments)
    while True:
        try:
            # A loop in C; when something is raised, it has kept what came before.
            results.extend(map(function, left))
        except Exception as error:
            # Without its traceback, which would keep all segments of the frame alive.
            raised[len(results)] = error.with_traceback(None)
            results.append(None)
            continue
        if len(results) == len(segments):
            return results, raised
        # A StopIteration looks like the end.
        raised[len(results)] = StopIteration()
        results.append(None)
