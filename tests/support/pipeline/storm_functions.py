"""What the jobs of the storm do. A copy lies beside them, where all hosts import it from."""

from __future__ import annotations

import random
import socket
import time

from postroad.pipeline import Segment

POISON_EVERY = 997
"""Nobody can do these."""
FLAKY = 1 / 500
"""So many calls fail that will succeed the next time."""
WORK_S = 0.0001
"""Whoever is killed shall be killed at work."""

DEBIT, CREDIT = "debit", "credit"


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
    host = socket.gethostname()
    return [{"n": segment["n"], "part": part, "host": host} for part in range(segment["n"] % 3)]


def refuse_poison(segment: Segment) -> Segment:
    time.sleep(WORK_S)
    if segment["n"] % POISON_EVERY == 0:
        raise ValueError("nobody can do this")
    if random.random() < FLAKY:
        raise ConnectionError("not this time")
    return segment
