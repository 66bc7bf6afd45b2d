"""Cells: routing decisions, calls near and far, and how soon many domains know all routes.

The yardsticks are fixed goals, and the plain request rate of `net` measured in the same run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """Decisions, calls here, calls elsewhere, scale."""
    from benchmarks.cells import calls, routing, scale

    return [
        *routing.sections(settings),
        calls.near_section(settings),
        calls.far_section(settings),
        *scale.sections(settings),
    ]
