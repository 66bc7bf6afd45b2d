"""Acknowledgement counted report by report, in plain Python: what the pass must agree with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from postroad.pipeline.acks import ack_value


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
