"""Pipelines on Spark: what tracking costs, and what the same functions cost in bare Spark.

One Spark session serves all contenders, whose rounds are interleaved; but for those that measure
what it takes to start, and what a second executor brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Section, Settings


def sections(settings: Settings) -> Iterator[Section]:
    """What each part measures is made ready when its turn comes."""
    # Imported here, because Spark's workers import this package and need none of it.
    from benchmarks.pipeline import executors, files, latency, memory, queues, readers, shuffles

    yield from readers.sections(settings)
    yield from files.sections(settings)
    yield shuffles.section(settings)
    yield queues.section(settings)
    yield latency.section(settings)
    yield memory.section(settings)
    # The session is over then.
    yield from executors.sections(settings)
