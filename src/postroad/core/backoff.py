"""Pauses between attempts: doubling, bounded, with jitter so that a crowd spreads out."""

from __future__ import annotations

# 2 to this power exceeds any sensible ratio of last to first pause.
_DOUBLINGS_MAX = 32


def backoff(attempt: int, *, first_s: float, max_s: float, chance: float) -> float:
    """Seconds to pause before the given attempt, 1 being the first repeat.

    `chance` is a random number from 0 to 1 drawn by the caller; the pause is between half and all
    of the doubled one.
    """
    whole = min(first_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX), max_s)
    return whole * (0.5 + chance / 2)
