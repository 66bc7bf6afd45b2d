"""Cells: routing decisions, calls within a domain, and calls from satellite to satellite.

The yardsticks are fixed goals, and the plain request rate of `net` measured in the same run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """Calls here, calls elsewhere."""
    from benchmarks.cells import calls

    return [calls.near_section(settings), calls.far_section(settings)]
