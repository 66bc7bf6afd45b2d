"""Files to files through Spark's readers and writers: tracked, untracked, and in bare Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Contender, Section
from benchmarks.pipeline.bare import (
    cache_lines,
    measure_chunked,
    measure_dataframe,
    measure_operators,
)
from benchmarks.pipeline.jobs import make_job, make_spark_job, measure_job, warm_up, write_lines
from benchmarks.pipeline.session import shared_session
from postroad.pipeline.spark.runner import SparkRunner

if TYPE_CHECKING:
    from benchmarks.harness import Settings

TRACKED = "postroad"
FUSED = "postroad's own connectors, one batch"
DATAFRAME = "the same DataFrame job without tracking"
CHUNKED = "bare chunked mapInArrow into noop"
FAILING = "postroad, 1 % of segments failing"
LUCKY = "postroad, none of these failing"
OPERATORS = "one operator for each function"


def sections(settings: Settings) -> list[Section]:
    """Into one format, and into two."""
    write_lines(settings.scratch / "in" / "lines.jsonl", settings.segments)
    warm_up(shared_session(), settings.scratch)
    return [_one_format(settings), _two_formats(settings)]


def _one_format(settings: Settings) -> Section:
    session, count = shared_session(), settings.segments
    source, target = settings.scratch / "in", settings.scratch / "out"
    own = make_job(source / "lines.jsonl", target, batch_size=count)
    measure = partial(measure_job, SparkRunner, session, settings.scratch, count=count)
    streamed = partial(measure, is_stream=True)
    lines = cache_lines(session, source)
    case = f"{count:,} segments of 100 B, files to Parquet by Spark's reader and writer"
    return Section(
        title=case,
        unit="segments/s",
        contenders=[
            Contender(TRACKED, partial(streamed, make_spark_job(source, target))),
            Contender(DATAFRAME, partial(measure_dataframe, session, source, target, count)),
            Contender(FAILING, partial(streamed, make_spark_job(source, target, unlucky=7))),
            Contender(LUCKY, partial(streamed, make_spark_job(source, target, unlucky=100))),
            Contender(FUSED, partial(measure, own, is_stream=False)),
            Contender(CHUNKED, partial(measure_chunked, lines, count)),
        ],
        comparisons=[
            Comparison(case, TRACKED, DATAFRAME, 0.95),
            Comparison(case, TRACKED, CHUNKED, 0.6),
            Comparison(case, TRACKED, FUSED, 1.0),
            Comparison(f"{case}, 1 % failing", FAILING, LUCKY, 0.9),
        ],
    )


def _two_formats(settings: Settings) -> Section:
    session, count = shared_session(), settings.segments
    source, target = settings.scratch / "in", settings.scratch / "out"
    job = make_spark_job(source, target, formats=("parquet", "json"))
    case = f"{count:,} segments of 100 B, files to Parquet and JSON by Spark's reader and writers"
    operators = partial(
        measure_operators, session, source, target, count, formats=("parquet", "json")
    )
    return Section(
        title=case,
        unit="segments/s",
        contenders=[
            Contender(
                TRACKED,
                partial(
                    measure_job,
                    SparkRunner,
                    session,
                    settings.scratch,
                    job,
                    is_stream=True,
                    count=count,
                ),
            ),
            Contender(OPERATORS, operators),
        ],
        comparisons=[Comparison(case, TRACKED, OPERATORS, 1.5)],
        rounds_max=3,
    )
