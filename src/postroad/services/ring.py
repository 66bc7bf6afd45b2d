"""Rings: which node a key belongs to.

There are two layouts. `EQUAL` is that of the original system: the ring is cut into equal slices,
given to the nodes in turn, so callers in either language choose alike; but a node that comes moves
nearly every key. In `CONSISTENT` each node has points of its own, where its name puts them, so a
node that comes takes its share and moves nothing else.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import md5

from postroad.core.errors import ConfigError

HASH_SIZE = 2**32
SLICES_MAX = 100_000
"""Slices of one ring; more take long to lay out and gain nothing."""

# A node of a consistent ring has more points than slices of an equal one, for an even share.
_POINTS_PER_SLICE = 16


class Layout(enum.Enum):
    """How a ring is divided."""

    EQUAL = "equal"
    CONSISTENT = "consistent"


class Ring:
    """Slices, each with the last hash that belongs to it, and its node."""

    def __init__(self, ends: Sequence[int], names: Sequence[str], ring_size: int | None) -> None:
        self._ends = ends
        self._names = names
        self._ring_size = ring_size

    def owner(self, key: str) -> str:
        """The node a key belongs to."""
        return next(self.owners(key))

    def owners(self, key: str) -> Iterator[str]:
        """That node, then the one to turn to without it, and so on: each once."""
        start = bisect_left(self._ends, hash_of(key, self._ring_size))
        seen: set[str] = set()
        for step in range(len(self._names)):
            name = self._names[(start + step) % len(self._names)]
            if name not in seen:
                seen.add(name)
                yield name


def hash_of(key: str, ring_size: int | None = None) -> int:
    """The place of a key: the first 32 bits of its MD5 digest, modulo the size if there is one."""
    digest = md5(key.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    number = int.from_bytes(digest[:4])
    return number % ring_size if ring_size else number


def lay_out(
    names: Sequence[str],
    *,
    vnodes: int = 10,
    ring_size: int | None = None,
    layout: Layout = Layout.EQUAL,
) -> Ring:
    """A ring of nodes; for an equal one the names must be sorted.

    Args:
        names: of the nodes, each once.
        vnodes: slices of each node.
        ring_size: hashes are taken modulo this; None for all 32 bits.
        layout: how the ring is divided.
    """
    if vnodes < 1:
        raise ConfigError(f"a ring needs at least one slice for each node, not {vnodes}")
    count = len(names) * vnodes * (_POINTS_PER_SLICE if layout is Layout.CONSISTENT else 1)
    if not 0 < count <= SLICES_MAX:
        raise ConfigError(f"a ring of {count} slices is not from 1 to {SLICES_MAX}")
    if layout is Layout.EQUAL:
        return _equal(names, vnodes, ring_size)
    return _consistent(names, vnodes * _POINTS_PER_SLICE, ring_size)


def _equal(names: Sequence[str], vnodes: int, ring_size: int | None) -> Ring:
    size, count = ring_size or HASH_SIZE, len(names) * vnodes
    # JavaScript divides first and rounds after, so this does too.
    width = size / count
    ends = [int(width * number) for number in range(1, count)]
    return Ring([*ends, size], list(names) * vnodes, ring_size)


def _consistent(names: Sequence[str], points: int, ring_size: int | None) -> Ring:
    placed = sorted(
        (hash_of(f"{name}|{number}", ring_size), name) for name in names for number in range(points)
    )
    return Ring([place for place, _ in placed], [name for _, name in placed], ring_size)
