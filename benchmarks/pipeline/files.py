"""Files to Parquet by Postroad's own connectors: tracked, and untracked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Contender, Section
from benchmarks.pipeline.jobs import make_job, measure_job, warm_up, write_lines
from benchmarks.pipeline.session import shared_session
from benchmarks.pipeline.untracked import UntrackedRunner
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from benchmarks.harness import Settings

STREAM_BATCH = 100_000
TRACKED, UNTRACKED = "postroad", "the same without tracking"


def sections(settings: Settings) -> list[Section]:
    """As one batch, and as a stream."""
    return [_section(settings, is_stream=False), _section(settings, is_stream=True)]


def _section(settings: Settings, *, is_stream: bool) -> Section:
    session, count = shared_session(), settings.segments
    source = write_lines(settings.scratch / "in" / "lines.jsonl", count)
    batch = min(STREAM_BATCH, count) if is_stream else count
    job = make_job(source, settings.scratch / "out", batch_size=batch)
    warm_up(session, settings.scratch)
    measure = partial(
        measure_job,
        session=session,
        scratch=settings.scratch,
        job=job,
        is_stream=is_stream,
        count=count,
    )
    how = f"a stream of batches of {batch:,} for each core" if is_stream else "one batch"
    case = f"{count:,} segments of 100 B, files to Parquet by Postroad's connectors, {how}"
    return Section(
        title=case,
        unit="segments/s",
        contenders=[
            Contender(TRACKED, partial(measure, SparkRunner)),
            Contender(UNTRACKED, partial(measure, UntrackedRunner)),
        ],
        comparisons=[Comparison(case, TRACKED, UNTRACKED, 0.9)],
    )
