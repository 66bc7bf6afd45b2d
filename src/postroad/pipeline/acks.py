"""Which segments are done with, root and branch: the arithmetic of acknowledgement.

Every edge of a root's tree has 64 bits. A task that takes a segment along an edge and makes others
reports the XOR of the bits it took and the bits it gave. When everything is reported, each edge has
been given once and taken once, and the sum is zero.

XOR forgets whatever is reported twice, so reports have a key, and each is counted once. The bits
follow from where an edge is in the tree and never from chance, so that doing a thing again gives
the same report; they differ from one delivery of a root to the next, so that halves of two
deliveries never make a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """Spread 64 bits so that each decides about all (the finaliser of splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def hash_text(key: bytes, *texts: str) -> int:
    """64 bits of some texts; the texts cannot run into each other."""
    digest = hashlib.blake2b(digest_size=8, key=key)
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little")


class AckIds:
    """Makes the ids and bits of one job's roots and edges."""

    def __init__(self, job: str) -> None:
        # Not a secret: two jobs on one input only must not have the same ids.
        self._key = hashlib.blake2b(job.encode(), digest_size=32).digest()
        self._edges: dict[tuple[str, str], int] = {}

    def source_key(self, task: str, source: str) -> int:
        """What all roots from one source of an input have in common."""
        return hash_text(self._key, task, source)

    def root(self, task: str, source: str, position: int | str) -> int:
        """The id of what an input gives from one of its positions, at every time."""
        if isinstance(position, str):
            return hash_text(self._key, task, source, position)
        return mix64((self.source_key(task, source) + position * _GOLDEN) & _MASK)

    def edge_key(self, source: str, target: str) -> int:
        """What all edges between two tasks have in common."""
        key = self._edges.get((source, target))
        if key is None:
            key = self._edges[source, target] = hash_text(self._key, source, target)
        return key

    def edge(self, parent: int, source: str, target: str, ordinal: int) -> int:
        """The id of an edge: the same in every delivery of its root.

        Args:
            parent: id of the edge along which the segment came that this one was made of, or the
                root's own.
            source: the task that made it.
            target: the task that it is for.
            ordinal: its place among those that were made together.
        """
        return mix64((mix64(parent ^ self.edge_key(source, target)) + ordinal * _GOLDEN) & _MASK)


def ack_value(edge: int, generation: int) -> int:
    """The bits of an edge in one delivery of its root."""
    if generation == 0:
        return edge
    # Mixed, because what is only added to all would cancel out between any two.
    return mix64(edge ^ mix64(generation * _GOLDEN & _MASK))


class AckReport(NamedTuple):
    """What became of one segment in one task."""

    root: int
    generation: int
    task: str
    edge: int
    """The edge it came along; for the task that brought the root in, the root's id."""
    bits: int
    """XOR of the bits it took and those it gave."""
    produced: int
    """Edges it gave."""
    consumed: int
    """Edges it took: 1, or 0 where the root came in."""
    is_init: bool = False
    has_failed: bool = False


def ack_root(root: int, generation: int, task: str, given: Iterable[int]) -> AckReport:
    """The root came in, and went on along some edges; along none, it is done with."""
    edges = list(given)
    return AckReport(
        root, generation, task, root, _xor(edges, generation), len(edges), 0, is_init=True
    )


def ack_task(root: int, generation: int, task: str, taken: int, given: Iterable[int]) -> AckReport:
    """A segment was taken along an edge, and what was made of it went on along others."""
    edges = list(given)
    bits = ack_value(taken, generation) ^ _xor(edges, generation)
    return AckReport(root, generation, task, taken, bits, len(edges), 1)


def fail_task(root: int, generation: int, task: str, taken: int) -> AckReport:
    """A segment was taken, and nothing came of it that counts."""
    return AckReport(root, generation, task, taken, 0, 0, 1, has_failed=True)


def _xor(edges: Iterable[int], generation: int) -> int:
    sum = 0
    for edge in edges:
        sum ^= ack_value(edge, generation)
    return sum


class AckStatus(NamedTuple):
    """How far one delivery of a root is."""

    is_begun: bool
    has_failed: bool
    residue: int
    """Zero when each edge that was given was taken."""
    missing: int
    """Edges given and not taken; less than none if some were taken that nobody gave."""

    @property
    def is_done(self) -> bool:
        """Whether the whole tree is done with."""
        return self.is_begun and not self.has_failed and self.residue == 0 and self.missing == 0


NOTHING = AckStatus(is_begun=False, has_failed=False, residue=0, missing=0)


class Acker:
    """Counts reports in plain Python: what every faster way must agree with."""

    def __init__(self) -> None:
        # By root, so that a root can be forgotten.
        self._seen: dict[int, set[tuple[int, str, int]]] = {}
        self._verdicts: dict[int, dict[int, AckStatus]] = {}

    def add(self, report: AckReport) -> None:
        """Take a report; the same one again changes nothing."""
        seen = self._seen.setdefault(report.root, set())
        key = (report.generation, report.task, report.edge)
        if key in seen:
            return
        seen.add(key)
        before = self.verdict(report.root, report.generation)
        self._verdicts.setdefault(report.root, {})[report.generation] = AckStatus(
            before.is_begun or report.is_init,
            before.has_failed or report.has_failed,
            before.residue ^ report.bits,
            before.missing + report.produced - report.consumed,
        )

    def verdict(self, root: int, generation: int) -> AckStatus:
        """How far a delivery of a root is, by what was reported."""
        return self._verdicts.get(root, {}).get(generation, NOTHING)

    def forget(self, root: int) -> None:
        """Drop everything about a root: it is done with, or dead."""
        self._seen.pop(root, None)
        self._verdicts.pop(root, None)
