"""Whole nodes: how soon one runs, what it takes when idle, and what being looked at costs.

A process per node, as `postroad node start` makes it; the harness process only waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """The life of a node, and requests to one that is looked at."""
    from benchmarks.node import life, looks

    return [*life.sections(settings), looks.section(settings)]
