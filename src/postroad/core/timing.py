"""Pauses between attempts: doubling, bounded, with jitter so that a crowd spreads out."""

from __future__ import annotations

NEVER = float("inf")
"""A deadline that never comes."""


def format_duration(seconds: float) -> str:
    """A duration for people: `0.35 ms`, `12 ms`, `1.5 s`."""
    if seconds < 0.001:
        return f"{seconds * 1000:.2f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


# 2 to this power exceeds any sensible ratio of last to first pause.
_DOUBLINGS_MAX = 32


def backoff(attempt: int, *, first_s: float, max_s: float, chance: float) -> float:
    """Seconds to pause before the given attempt, 1 being the first repeat.

    `chance` is a random number from 0 to 1 drawn by the caller; the pause is between half and all
    of the doubled one.
    """
    whole = min(first_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX), max_s)
    return whole * (0.5 + chance / 2)
