"""The data source `postroad`, as any user of Spark uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroad.core.errors import StoreLockedError
from postroad.durable import StoredMessage, store_from_url
from postroad.durable.stored_messages import encode_stored_message
from postroad.pipeline.coordinator import standalone
from tests.support.servers.postgres import fresh_database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

SEGMENTS = 1_500


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    from postroad.pipeline.spark.data_source import PostroadDataSource

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
        .option("split_bytes", "6000")
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


def test_stream_whose_store_was_deleted_is_an_error(
    session: SparkSession, lines: Path, tmp_path: Path
) -> None:
    """It would wait for numbers that the new store gives to others, and lose what they are for."""
    copy(session, lines, tmp_path)
    for path in tmp_path.glob("read.db*"):
        path.unlink()
    (lines / "b.jsonl").write_text(f'{{"n": {SEGMENTS}}}\n')
    with pytest.raises(Exception, match=r"is at delivery \d+, and the last .* knows is 0"):
        copy(session, lines, tmp_path)
    assert sorted(written(tmp_path)) == list(range(SEGMENTS))


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


def start_writing(
    session: SparkSession, tmp_path: Path, checkpoint: str = "checkpoint"
) -> StreamingQuery:
    """Write the numbers of a directory by a stream that ends then."""
    return (
        session.readStream.schema("n long")
        .json(str(tmp_path / "numbers"))
        .writeStream.format("postroad")
        .option("connector", "jsonl")
        .option("path", str(tmp_path / "out"))
        .option("store", str(tmp_path / "written.db"))
        .option("checkpointLocation", str(tmp_path / checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def write_all(session: SparkSession, tmp_path: Path, checkpoint: str = "checkpoint") -> None:
    query = start_writing(session, tmp_path, checkpoint)
    try:
        assert query.awaitTermination(240)
    finally:
        query.stop()


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.mkdir()
    (path / "a.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
    return path


def test_stream_with_fresh_checkpoint_writes_everything_again(
    session: SparkSession, numbered: Path, tmp_path: Path
) -> None:
    write_all(session, tmp_path, "first")
    write_all(session, tmp_path, "second")
    assert sorted(written(tmp_path)) == sorted([*range(10), *range(10)])


def test_stream_restarted_from_its_checkpoint_writes_nothing_twice(
    session: SparkSession, numbered: Path, tmp_path: Path
) -> None:
    write_all(session, tmp_path)
    # As if Spark had died between the commit of the sink and its own.
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    (numbered / "b.json").write_text('{"n": 10}\n')
    write_all(session, tmp_path)
    assert sorted(written(tmp_path)) == list(range(11))


def test_two_streams_share_a_store_and_a_directory(
    session: SparkSession, numbered: Path, tmp_path: Path
) -> None:
    queries = [start_writing(session, tmp_path, name) for name in ("first", "second")]
    for query in queries:
        assert query.awaitTermination(240)
    assert sorted(written(tmp_path)) == sorted([*range(10), *range(10)])


def test_stream_whose_checkpoint_was_rolled_back_is_an_error(
    session: SparkSession, numbered: Path, tmp_path: Path
) -> None:
    write_all(session, tmp_path)
    (numbered / "b.json").write_text('{"n": 10}\n')
    write_all(session, tmp_path)
    for folder in ("commits", "offsets", "sources/0"):
        for path in (tmp_path / "checkpoint" / folder).iterdir():
            path.unlink()
    with pytest.raises(Exception, match="its checkpoint was rolled back"):
        write_all(session, tmp_path)
    assert sorted(written(tmp_path)) == list(range(11))


def test_rows_go_from_executors_to_a_table_and_a_refused_one_is_told(
    session: SparkSession, tmp_path: Path
) -> None:
    with fresh_database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE numbers (postroad_id BIGINT PRIMARY KEY, n BIGINT CHECK (n < 500))"
            )

        def write(count: int) -> None:
            (
                session.range(count)
                .selectExpr("id as n")
                .repartition(4)
                .write.format("postroad")
                .option("connector", "sql")
                .option("database", dsn)
                .option("table", "numbers")
                .option("store", str(tmp_path / "written.db"))
                .mode("append")
                .save()
            )

        write(500)
        with pytest.raises(Exception, match="violates check constraint"):
            write(600)
        with psycopg.connect(dsn, autocommit=True) as connection:
            found = connection.execute("SELECT n FROM numbers ORDER BY n").fetchall()
        assert [n for (n,) in found] == list(range(500))


# Queues.


@pytest.fixture(params=["sqlite", "postgres"])
def node_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The store of a node that does not run, with a queue of 50 orders."""
    with ExitStack() as stack:
        location = str(tmp_path / "node.db")
        if request.param == "postgres":
            location = stack.enter_context(fresh_database())
        asyncio.run(post_orders(location, range(50)))
        yield location


async def post_orders(location: str, numbers: Iterable[int]) -> None:
    letters = [
        StoredMessage(
            n, "orders", b'{"n":%d,"at":"2026-01-02"}' % n, 1_000 + n, f"k{n}", {"a": "b"}
        )
        for n in numbers
    ]
    store = store_from_url(location)
    await store.open("alpha")
    try:
        await store.write(
            lambda ledger: ledger.enqueue_all(
                "alpha", [encode_stored_message(it) for it in letters]
            )
        )
    finally:
        await store.close()


def queue(
    reader: DataStreamReader | DataFrameReader, location: str, queue: str = "orders"
) -> DataFrame:
    source = reader.format("postroad").option("connector", "queue").option("queue", queue)
    return source.option("store", location).load()


def run_query(writer: DataStreamWriter) -> None:
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(240)
    finally:
        query.stop()


def test_stream_from_queue_to_queue_moves_each_message_once(
    session: SparkSession, node_store: str, tmp_path: Path
) -> None:
    def move() -> None:
        run_query(
            queue(session.readStream, node_store)
            .select("payload", "key")
            .writeStream.format("postroad")
            .option("connector", "queue")
            .option("queue", "copies")
            .option("key", "key")
            .option("store", node_store)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )

    def copies() -> list[int]:
        rows = queue(session.read.schema("n long"), node_store, "copies").collect()
        return sorted(row.n for row in rows)

    move()
    assert copies() == list(range(50))
    asyncio.run(post_orders(node_store, range(50, 60)))
    move()
    assert copies() == list(range(60))
    keys = {row.key for row in queue(session.read, node_store, "copies").collect()}
    assert keys == {f"k{n}" for n in range(60)}


def test_queue_is_read_with_its_metadata_and_with_a_schema(
    session: SparkSession, node_store: str
) -> None:
    plain = queue(session.read, node_store).orderBy("sent").first()
    assert plain is not None
    assert (plain.sender, plain.key, plain.headers) == ("alpha", "k0", {"a": "b"})
    assert json.loads(bytes(plain.payload))["n"] == 0
    assert plain.sent.timestamp() == 1
    schema = "n long, at date, _key string"
    rows = queue(session.read.schema(schema), node_store).orderBy("n").collect()
    assert [(row.n, str(row.at), row._key) for row in rows] == [
        (n, "2026-01-02", f"k{n}") for n in range(50)
    ]


def test_row_that_does_not_fit_the_schema_is_told_or_kept(
    session: SparkSession, lines: Path
) -> None:
    def read(schema: str) -> DataFrame:
        source = session.read.schema(schema).format("postroad").option("connector", "jsonl")
        return source.option("path", str(lines / "*.jsonl")).load()

    (lines / "b.jsonl").write_text('{"n": "many"}\n')
    with pytest.raises(Exception, match="a row does not fit the schema"):
        read("n long").collect()
    rows = read("n long, _raw binary").collect()
    assert len([row for row in rows if row.n is not None]) == SEGMENTS
    assert sorted(bytes(row._raw) for row in rows if row.n is None) == [
        b"no json",
        b'{"n": "many"}',
    ]


def test_queue_of_a_running_node_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroad.pipeline.spark.data_source import PostroadDataSource

    location = str(tmp_path / "node.db")
    asyncio.run(post_orders(location, range(1)))
    source = PostroadDataSource({"connector": "queue", "queue": "orders", "store": location})
    monkeypatch.setattr(standalone, "_LOCK_TIMEOUT_S", 0.1)

    async def read_while_node_runs() -> None:
        store = store_from_url(location)
        await store.open("alpha")
        try:
            await asyncio.to_thread(source.reader(source.schema()).partitions)
        finally:
            await store.close()

    with pytest.raises(StoreLockedError, match="run a job there, or stop it"):
        asyncio.run(read_while_node_runs())


def test_missing_option_is_an_error(session: SparkSession) -> None:
    with pytest.raises(Exception, match="the option connector says what to read"):
        session.read.format("postroad").load().collect()
