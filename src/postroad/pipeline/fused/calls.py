"""A function called for many segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroad.pipeline.functions import Function


def map_function(
    function: Function, segments: Sequence[object]
) -> tuple[list[Any], dict[int, Exception]]:
    """Call a function with each segment, or whatever else it takes.

    Returns:
        What it returned, one for each, and what it raised, by position. Call `forget_frames` with
        these when nobody asks any more where they were raised.
    """
    results: list[Any] = []
    raised: dict[int, Exception] = {}
    for segment in segments:
        # As quick as a loop in C, which would take a StopIteration for its end.
        try:
            results.append(function(segment))
        except Exception as error:
            raised[len(results)] = error
            results.append(None)
    return results, raised


def drop_tracebacks(*errors: BaseException) -> None:
    """Take the tracebacks from exceptions and those behind them: they keep all segments alive."""
    waiting: list[BaseException | None] = list(errors)
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        error.__traceback__ = None
        waiting += (error.__cause__, error.__context__)
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
