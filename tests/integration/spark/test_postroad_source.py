"""The data source `postroad`, as any user of Spark uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENTS = 1_500


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    from postroad.pipeline.spark.postroad_source import PostroadDataSource

    spark.dataSource.register(PostroadDataSource)
    return spark


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    (path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(SEGMENTS)) + "no json\n")
    return path


def numbers(frame: DataFrame) -> list[int]:
    rows = frame.collect()
    assert len({row.id for row in rows}) == len(rows)
    return sorted(json.loads(row.segment)["n"] for row in rows if row.segment is not None)


def test_batch_of_lines_is_read_with_what_is_no_segment(session: SparkSession, lines: Path) -> None:
    frame = (
        session.read.format("postroad")
        .option("connector", "jsonl")
        .option("path", str(lines / "*.jsonl"))
        .option("slice_bytes", "6000")
        .load()
    )
    assert numbers(frame) == list(range(SEGMENTS))
    assert [bytes(row.raw) for row in frame.where("segment is null").collect()] == [b"no json"]


def test_stream_goes_on_where_it_was_and_writes_nothing_twice(
    session: SparkSession, lines: Path, tmp_path: Path
) -> None:
    copy(session, lines, tmp_path)
    assert sorted(written(tmp_path)) == list(range(SEGMENTS))
    copy(session, lines, tmp_path)
    assert sorted(written(tmp_path)) == list(range(SEGMENTS)), "nothing came twice"
    (lines / "b.jsonl").write_text(f'{{"n": {SEGMENTS}}}\n')
    copy(session, lines, tmp_path)
    assert sorted(written(tmp_path)) == list(range(SEGMENTS + 1))


def copy(session: SparkSession, lines: Path, tmp_path: Path) -> None:
    """Copy what is there now, by a stream that ends then."""
    frame = (
        session.readStream.format("postroad")
        .option("connector", "jsonl")
        .option("path", str(lines / "*.jsonl"))
        .option("store", str(tmp_path / "read.db"))
        .option("segments_max", "1000")
        .load()
    )
    query = (
        frame.selectExpr("get_json_object(segment, '$.n') as n")
        .where("n is not null")
        .writeStream.format("postroad")
        .option("connector", "jsonl")
        .option("path", str(tmp_path / "out"))
        .option("store", str(tmp_path / "written.db"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(240)
    finally:
        query.stop()


def written(tmp_path: Path) -> Iterator[int]:
    for path in (tmp_path / "out").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            yield int(json.loads(line)["n"])


def test_batch_is_written(session: SparkSession, tmp_path: Path) -> None:
    (
        session.range(100)
        .withColumnRenamed("id", "n")
        .write.format("postroad")
        .option("connector", "jsonl")
        .option("path", str(tmp_path / "out"))
        .option("store", str(tmp_path / "written.db"))
        .mode("append")
        .save()
    )
    assert sorted(written(tmp_path)) == list(range(100))


def test_missing_option_is_an_error(session: SparkSession) -> None:
    with pytest.raises(Exception, match="the option connector says what to read"):
        session.read.format("postroad").load().collect()
