"""Pipelines on Spark: what tracking costs, and what the same functions cost in bare Spark.

One Spark session serves all contenders, whose rounds are interleaved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> list[Section]:
    """Batches and streams from files to files, queues, failures, latency, memory."""
    # Imported here, because Spark's workers import this package and need none of it.
    from benchmarks.pipeline import files, latency, memory, queues

    return [
        *files.sections(settings),
        queues.section(settings),
        latency.section(settings),
        memory.section(settings),
    ]
