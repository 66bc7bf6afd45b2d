"""Deadlines, durations and retry delays. Pure: time and randomness are arguments."""

from __future__ import annotations

NEVER = float("inf")
"""A deadline that never comes."""


def format_duration(seconds: float) -> str:
    """Return a human-readable duration: `0.35 ms`, `12 ms`, `1.5 s`."""
    if seconds < 0.001:
        return f"{seconds * 1000:.2f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def backoff(
    attempt: int,
    *,
    initial_delay_s: float,
    max_delay_s: float,
    jitter: float,
    backoff_factor: float = 2.0,
) -> float:
    """Return the seconds to wait before an attempt: exponential backoff with jitter.

    Attempt 1 is the first retry. `jitter` is a random number from 0 to 1, drawn by the caller: the
    result is between half of the delay and all of it, so that callers do not retry all at once.
    """
    try:
        delay_s = min(initial_delay_s * backoff_factor ** (attempt - 1), max_delay_s)
    except OverflowError:
        delay_s = max_delay_s
    return delay_s * (0.5 + jitter / 2)
