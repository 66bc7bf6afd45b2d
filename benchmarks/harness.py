"""Runs contenders in interleaved rounds and turns their medians into comparison rows.

A benchmark is a list of sections. Within a section the rounds go A B C A B C, so that a slow spell
of the machine hits every contender alike. A contender that fails is reported and dropped; the
others still run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.terminal import format_number, say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Samples = dict[str, list[float]]


class BenchmarkFailed(Exception):
    """A contender gave no result: its process died, hung or answered wrongly."""


@dataclass(frozen=True)
class Settings:
    """How much work a run does."""

    scratch: Path
    loop: str
    rounds: int = 5
    seconds: float = 2.0
    warmup_s: float = 0.5
    idle_connections: int = 10_000
    segments: int = 1_000_000


@dataclass(frozen=True)
class Contender:
    """One thing to measure; `measure` takes one sample and leaves no process behind."""

    name: str
    measure: Callable[[], float]


@dataclass(frozen=True)
class Comparison:
    """What becomes a row: `ours` against `peer`, both names of contenders of the section.

    `goal` bounds ours/peer from below, or from above where `at_most`. A `budget` takes the place
    of a measured peer.
    """

    case: str
    ours: str
    peer: str
    goal: float | None = None
    at_most: bool = False
    budget: float | None = None

    @property
    def title(self) -> str:
        """The case with the direction of its goal, so that a row explains itself."""
        if self.goal is None:
            return f"{self.case} [ours/peer]"
        return f"{self.case} [ours/peer {'<=' if self.at_most else '>='} goal]"


@dataclass(frozen=True)
class Section:
    """Contenders measured in the same unit, interleaved with one another."""

    title: str
    unit: str
    contenders: list[Contender]
    comparisons: list[Comparison]
    rounds_max: int | None = None


@dataclass(frozen=True)
class Row:
    """One line of the result table; None where a contender failed or no goal is set."""

    case: str
    unit: str
    ours: float | None
    peer: str
    peer_value: float | None
    ratio: float | None
    goal: float | None
    at_most: bool = field(default=False)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None for a row that only informs."""
        if self.goal is None:
            return None
        if self.ratio is None:
            return False
        return self.ratio <= self.goal if self.at_most else self.ratio >= self.goal


def run_section(section: Section, settings: Settings) -> list[Row]:
    """Take every sample of a section and compare the medians."""
    rounds = min(settings.rounds, section.rounds_max or settings.rounds)
    say(f"\n{section.title}: {rounds} interleaved rounds, {section.unit}")
    samples = _interleave(section, rounds)
    for name, values in samples.items():
        spread = f"{format_number(min(values))} .. {format_number(max(values))}" if values else ""
        say(f"  median {_shown(values):>12}  {name}  ({spread or 'failed'})")
    return [_compare(comparison, section.unit, samples) for comparison in section.comparisons]


def _interleave(section: Section, rounds: int) -> Samples:
    samples: Samples = {contender.name: [] for contender in section.contenders}
    healthy = list(section.contenders)
    for number in range(1, rounds + 1):
        for contender in list(healthy):
            try:
                value = contender.measure()
            except BenchmarkFailed as failure:
                say(f"  FAILED {contender.name}: {failure}")
                healthy.remove(contender)
                samples[contender.name].clear()
                continue
            samples[contender.name].append(value)
            say(f"  round {number}/{rounds}  {format_number(value):>12}  {contender.name}")
    return samples


def _compare(comparison: Comparison, unit: str, samples: Samples) -> Row:
    ours = _median(samples[comparison.ours])
    peer = comparison.budget
    if peer is None:
        peer = _median(samples[comparison.peer])
    return Row(
        case=comparison.title,
        unit=unit,
        ours=ours,
        peer=comparison.peer,
        peer_value=peer,
        ratio=None if ours is None or not peer else ours / peer,
        goal=comparison.goal,
        at_most=comparison.at_most,
    )


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def _shown(values: list[float]) -> str:
    return format_number(median(values)) if values else "-"
