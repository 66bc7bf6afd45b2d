"""Files to Parquet: tracked, untracked, and in bare Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Contender, Section
from benchmarks.pipeline.bare import cache_lines, measure_chunked, measure_operators
from benchmarks.pipeline.jobs import make_job, measure_job, write_lines
from benchmarks.pipeline.session import shared_session
from benchmarks.pipeline.untracked import UntrackedRunner
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from benchmarks.harness import Settings

SEGMENTS = 1_000_000
QUICK_SEGMENTS = 50_000
STREAM_BATCH = 200_000
TRACKED, UNTRACKED = "postroad", "the same without tracking"
FAILING = "postroad, 1 % of segments failing"
LUCKY = "postroad, none of these failing"
CHUNKED = "bare chunked mapInArrow into noop"
OPERATORS = "one operator for each function, into Parquet"


def sections(settings: Settings) -> list[Section]:
    """As one batch, and as a stream."""
    count = SEGMENTS if settings.rounds > 1 else QUICK_SEGMENTS
    return [_batches(settings, count), _streams(settings, count)]


def _batches(settings: Settings, count: int) -> Section:
    session = shared_session()
    source = write_lines(settings.scratch / "in.jsonl", count)
    target = settings.scratch / "out"
    job = make_job(source, target, batch_size=count)
    failing = make_job(source, target, batch_size=count, unlucky=7)
    lucky = make_job(source, target, batch_size=count, unlucky=100)
    lines = cache_lines(session, source)
    measure = partial(
        measure_job, session=session, scratch=settings.scratch, is_stream=False, count=count
    )
    # The first one has workers to start and code to compile.
    few = write_lines(settings.scratch / "few.jsonl", QUICK_SEGMENTS)
    warm = make_job(few, target, batch_size=QUICK_SEGMENTS)
    measure_job(SparkRunner, session, settings.scratch, warm, is_stream=False, count=QUICK_SEGMENTS)
    case = f"{count:,} segments of 100 B, files to Parquet, one batch"
    return Section(
        title=case,
        unit="segments/s",
        contenders=[
            Contender(TRACKED, partial(measure, SparkRunner, job=job)),
            Contender(UNTRACKED, partial(measure, UntrackedRunner, job=job)),
            Contender(FAILING, partial(measure, SparkRunner, job=failing)),
            Contender(LUCKY, partial(measure, SparkRunner, job=lucky)),
            Contender(CHUNKED, partial(measure_chunked, lines, count)),
            Contender(OPERATORS, partial(measure_operators, session, source, target, count)),
        ],
        comparisons=[
            Comparison(case, TRACKED, UNTRACKED, 0.9),
            Comparison(case, TRACKED, CHUNKED, 0.5),
            Comparison(case, TRACKED, OPERATORS, 1.5),
            Comparison(f"{case}, 1 % failing", FAILING, LUCKY, 0.95),
        ],
    )


def _streams(settings: Settings, count: int) -> Section:
    session = shared_session()
    source = write_lines(settings.scratch / "in.jsonl", count)
    job = make_job(source, settings.scratch / "out", batch_size=min(STREAM_BATCH, count))
    measure = partial(
        measure_job, session=session, scratch=settings.scratch, is_stream=True, count=count
    )
    case = f"{count:,} segments of 100 B, files to Parquet, a stream of batches of {STREAM_BATCH:,}"
    return Section(
        title=case,
        unit="segments/s",
        contenders=[
            Contender(TRACKED, partial(measure, SparkRunner, job=job)),
            Contender(UNTRACKED, partial(measure, UntrackedRunner, job=job)),
        ],
        comparisons=[Comparison(case, TRACKED, UNTRACKED, 0.9)],
    )
