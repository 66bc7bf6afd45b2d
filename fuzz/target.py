"""What is fuzzed: a name, an invariant over bytes, and valid inputs to begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Long enough for several frames, short enough to be fed byte by byte thousands of times a second.
INPUT_BYTES_MAX = 512


class Target(NamedTuple):
    """One decoder. `check` returns for any input, unless the decoder is wrong."""

    name: str
    check: Callable[[bytes], None]
    seeds: list[bytes]
    bytes_max: int = INPUT_BYTES_MAX


class BrokenInvariant(AssertionError):
    """The decoder did something it must never do, short of raising."""


def require(holds: bool, claim: str) -> None:
    """Fail unless the claim holds; unlike `assert` also under `python -O`."""
    if not holds:
        raise BrokenInvariant(claim)


def prefixes(data: bytes, edge: int = 64) -> list[bytes]:
    """The input cut off everywhere near its start and its end, longest last."""
    lengths = [*range(min(edge, len(data))), *range(max(edge, len(data) - edge), len(data))]
    return [data[:length] for length in lengths]
