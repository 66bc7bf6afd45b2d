"""What one flush of a small write takes on the disk that all contenders write to."""

from __future__ import annotations

import os
from functools import partial
from statistics import median
from tempfile import TemporaryFile
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Contender, Section

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.harness import Settings

WRITES = 200
WRITE_BYTES = 100


def latency_section(settings: Settings) -> Section:
    """Median microseconds of an fsync, and of an fdatasync, after an append."""
    case = f"one fsync after an append of {WRITE_BYTES} B, p50 of {WRITES}"
    fsync, fdatasync = "fsync", "fdatasync"
    return Section(
        title=case,
        unit="µs",
        contenders=[
            Contender(fsync, partial(measure_latency_us, os.fsync, settings.scratch)),
            Contender(fdatasync, partial(measure_latency_us, os.fdatasync, settings.scratch)),
        ],
        comparisons=[Comparison(case, fsync, fdatasync)],
    )


def measure_latency_us(
    flush: Callable[[int], None], directory: Path, pause_s: float = 0.0
) -> float:
    """Append and flush again and again, with pauses between; the append is not timed."""
    samples = []
    with TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(WRITES):
            sleep(pause_s)
            file.write(bytes(WRITE_BYTES))
            start = perf_counter_ns()
            flush(file.fileno())
            samples.append(perf_counter_ns() - start)
    return median(samples) / 1000
