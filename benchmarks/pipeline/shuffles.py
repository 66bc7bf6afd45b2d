"""A shuffled job, `group_by` and functions behind it, against the same DataFrame job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Contender, Section
from benchmarks.pipeline.bare import measure_shuffled
from benchmarks.pipeline.jobs import make_shuffled_job, measure_job, warm_up, write_lines
from benchmarks.pipeline.session import shared_session
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from benchmarks.harness import Settings

TRACKED, UNTRACKED = "postroad", "the same DataFrame job without tracking"


def section(settings: Settings) -> Section:
    """Segments per second."""
    session, count = shared_session(), settings.segments
    source, target = settings.scratch / "in", settings.scratch / "out"
    job = make_shuffled_job(write_lines(source / "lines.jsonl", count), target, batch_size=count)
    warm_up(session, settings.scratch)
    case = f"{count:,} segments of 100 B, shuffled by 1,000 keys, files to Parquet, one batch"
    tracked = partial(
        measure_job, SparkRunner, session, settings.scratch, job, is_stream=False, count=count
    )
    return Section(
        title=case,
        unit="segments/s",
        contenders=[
            Contender(TRACKED, tracked),
            Contender(UNTRACKED, partial(measure_shuffled, session, source, target, count)),
        ],
        comparisons=[Comparison(case, TRACKED, UNTRACKED, 0.8)],
        rounds_max=3,
    )
