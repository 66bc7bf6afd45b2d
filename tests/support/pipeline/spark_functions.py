"""Functions of jobs that tests run on Spark: workers import them from here."""

from __future__ import annotations

import os
import time
from pathlib import Path

from postroad.pipeline import Segment


def same(segment: Segment) -> Segment:
    return segment


def double(segment: Segment) -> Segment:
    segment["n"] *= 2
    return segment


def split(segment: Segment) -> list[Segment]:
    """Nothing, one or two."""
    return [segment | {"part": part} for part in range(segment["n"] % 3)]


def refuse_sevens(segment: Segment) -> Segment:
    if segment["n"] % 7 == 0:
        raise ValueError(f"{segment['n']} is a multiple of seven")
    return segment


def fail_first_time(segment: Segment) -> Segment:
    """Half of the segments fail at the first attempt, which a file remembers."""
    seen = Path(f"{segment['file']}-{segment['v']}")
    if segment["v"] in range(1, 1000, 2) and not seen.exists():
        seen.touch()
        raise ValueError("not yet")
    return segment


def is_even(new: Segment, old: Segment) -> bool:
    return bool(new["n"] % 2 == 0)


def die_with_sevens(segment: Segment) -> Segment:
    """Takes the whole worker with it."""
    if segment["n"] % 100 == 7:
        os._exit(1)
    return segment


def misbehave(segment: Segment) -> Segment:
    """Loops for ever, or takes all memory, if the segment says so."""
    while segment["n"] == "endless":
        time.sleep(0)
    if segment["n"] == "greedy":
        segment["more"] = [bytearray(1 << 30) for _ in range(1 << 20)]
    return segment


def price(segment: Segment) -> Segment:
    """What the expressions of the same name say in SQL."""
    n, root = segment["n"], segment.get("root")
    new = {
        "name": f"{segment['name'].upper()}-{n:d}",
        "even": n % 2 == 0,
        "share": n / (n % 5),
        "digits": "abc"[n % 3],
        "half": None if root is None else root / 2,
        "nothing": None,
    }
    return segment | new


again = price


def label(segment: Segment) -> Segment:
    if segment["n"] % 7 == 0:
        raise ValueError("no")
    return segment | {"label": "x"}


sums = label


def hang_at_13(segment: Segment) -> Segment:
    """In native code that keeps the interpreter, and that no signal interrupts."""
    if segment["n"] == 13:
        segment["sum"] = sum(range(10**13))
    return segment


def die_once(segment: Segment, marker: str) -> Segment:
    """Ends its worker at the segment 30, the first time that this comes anywhere."""
    if segment["n"] == 30:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return segment
        os._exit(1)
    return segment
