"""The tiers of the tests: which of them run, and how much each of them tries.

`make quick` is for every save, `make test` guards every promise, `make nightly` has the breadth:
whole products of cases, and seeds that nobody has seen before. What a test is, follows from where
it lies; `tests/conftest.py` sets the markers.

Environment:
    POSTROAD_TIER  "quick", "test" (the default) or "nightly".
    POSTROAD_SEED  what all chance of a run is made from; 0 if not set, the date in `make nightly`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Tier(StrEnum):
    """How thorough a run is."""

    QUICK = "quick"
    TEST = "test"
    NIGHTLY = "nightly"


TIER = Tier(os.environ.get("POSTROAD_TIER") or Tier.TEST)
SEED = int(os.environ.get("POSTROAD_SEED") or 0)


def by_tier(test: T, nightly: T, quick: T | None = None) -> T:
    """What a test tries in this run; the quick tier does as `test` unless told otherwise."""
    if TIER is Tier.NIGHTLY:
        return nightly
    return quick if TIER is Tier.QUICK and quick is not None else test


def sample(cases: Sequence[T], count: int) -> list[T]:
    """All cases at night; otherwise so many, evenly spread, the first and the last among them."""
    if TIER is Tier.NIGHTLY or count >= len(cases):
        return list(cases)
    if count == 1:
        return [cases[0]]
    return [cases[round(i * (len(cases) - 1) / (count - 1))] for i in range(count)]


def seed_for(name: str) -> int:
    """The seed of one test: the same in every run with the same POSTROAD_SEED."""
    return zlib.crc32(f"{SEED} {name}".encode())
