"""Flows: Postroad and DBOS, both with SQLite that is synced at every commit.

A process per contender, two for flows between nodes; the harness process only waits. DBOS knows
no flows of two parties: those are held against its local ones of three steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """What one fsync takes; rates; what waiting flows cost; whether a long one becomes slow."""
    # Imported here, because every contender's process imports this package and must load no
    # other contender with it.
    from benchmarks.durable import disk
    from benchmarks.flows import history, parked, rates, within

    return [
        disk.latency_section(settings),
        *rates.sections(settings),
        *parked.sections(settings),
        history.section(settings),
        within.section(settings),
    ]
