"""The same functions in Spark without Postroad: as fast as Spark can, and the obvious way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.pipeline.functions import first, left, right, with_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 512
INPUT_SCHEMA = "n BIGINT, text STRING"
OUTPUT_SCHEMA = "n BIGINT, text STRING, twice BIGINT, more BIGINT"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def cache_lines(session: SparkSession, source: Path) -> DataFrame:
    """The input in the JVM's memory: reading it is not part of what is measured."""
    lines = session.read.text(str(source)).repartition(2).cache()
    lines.count()
    return lines


def _flat(results: Iterable[Any]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for result in results:
        if type(result) is dict:
            made.append(result)
        elif result is not None:
            made += result
    return made


def _all_functions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = pa.schema([("task", pa.int8()), ("payload", pa.binary())])
    for batch in batches:
        lines = batch.column(0).cast(pa.binary()).to_pylist()
        tasks: list[int] = []
        payloads: list[bytes] = []
        for start in range(0, len(lines), CHUNK):
            made = _flat(map(first, map(_decode, lines[start : start + CHUNK])))
            copies = list(map(dict, made))
            branches: list[list[Any]] = [list(map(left, made)), list(map(right, copies))]
            for task, results in enumerate(branches):
                encoded = list(map(_encode, _flat(results)))
                payloads += encoded
                tasks += [task] * len(encoded)
        columns = [pa.array(tasks, pa.int8()), pa.array(payloads, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def measure_chunked(lines: DataFrame, count: int) -> float:
    """All functions in one `mapInArrow`, in chunks, into nothing: segments per second."""
    started_s = time.perf_counter()
    made = lines.mapInArrow(_all_functions, "task tinyint, payload binary")
    made.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - started_s)


def _to_columns(made: list[tuple[str, dict[str, Any]]], names: Iterable[str]) -> pa.RecordBatch:
    import pyarrow as pa

    types = {"text": pa.string()}
    columns = [pa.array([task for task, _ in made], pa.string())] + [
        pa.array([segment.get(name) for _, segment in made], types.get(name, pa.int64()))
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, ["task", *names])


def _typed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = _flat(map(first, batch.to_pylist()))
        copies = list(map(dict, made))
        both = [("a", it) for it in _flat(map(left, made))]
        both += [("b", it) for it in _flat(map(right, copies))]
        yield _to_columns(both, ("n", "text", "twice", "more"))


def measure_dataframe(session: SparkSession, source: Path, target: Path, count: int) -> float:
    """Spark's reader, all functions in one `mapInArrow`, one write: segments per second."""
    started_s = time.perf_counter()
    rows = session.read.schema(INPUT_SCHEMA).json(str(source))
    made = rows.mapInArrow(_typed, f"task STRING, {OUTPUT_SCHEMA}")
    made.write.partitionBy("task").mode("overwrite").parquet(str(target))
    return count / (time.perf_counter() - started_s)


def _keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        made = list(map(with_key, map(_decode, batch.column(0).cast(pa.binary()).to_pylist())))
        columns = [
            pa.array([it["key"] for it in made], pa.int64()),
            pa.array(list(map(_encode, made)), pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, ["key", "payload"])


def _shuffled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = _flat(map(first, map(_decode, batch.column(1).to_pylist())))
        both = [("a", it) for it in _flat(map(left, made))]
        yield _to_columns(both, ("n", "text", "key", "twice", "more"))


def measure_shuffled(session: SparkSession, source: Path, target: Path, count: int) -> float:
    """Two passes with a shuffle between them, into Parquet: segments per second."""
    started_s = time.perf_counter()
    keyed = session.read.text(str(source)).mapInArrow(_keyed, "key BIGINT, payload BINARY")
    ddl = "task STRING, n BIGINT, text STRING, key BIGINT, twice BIGINT, more BIGINT"
    made = keyed.repartition(2, "key").mapInArrow(_shuffled, ddl)
    made.drop("task").write.mode("overwrite").parquet(str(target))
    return count / (time.perf_counter() - started_s)


def measure_operators(
    session: SparkSession, source: Path, target: Path, count: int, formats: tuple[str, str]
) -> float:
    """A user-defined function of Spark for each function, into files: segments per second."""
    from pyspark.sql.functions import explode, from_json, udf

    first_udf = udf(_first_text, "array<string>")
    left_udf = udf(_left_text, "array<string>")
    right_udf = udf(_right_text, "array<string>")
    started_s = time.perf_counter()
    lines = session.read.text(str(source))
    made = lines.select(explode(first_udf("value")).alias("value")).persist()
    for name, function, format_ in zip(("a", "b"), (left_udf, right_udf), formats, strict=True):
        texts = made.select(explode(function("value")).alias("value"))
        written = texts.select(from_json("value", OUTPUT_SCHEMA).alias("s")).select("s.*")
        written.write.mode("overwrite").format(format_).save(str(target / name))
    elapsed_s = time.perf_counter() - started_s
    made.unpersist(blocking=True)
    return count / elapsed_s


# Workers import these.


def _first_text(line: str) -> list[str]:
    return _texts(first(_decode(line)))


def _left_text(line: str) -> list[str]:
    return _texts(left(_decode(line)))


def _right_text(line: str) -> list[str]:
    return _texts(right(_decode(line)))


def _texts(result: Any) -> list[str]:
    results = result if isinstance(result, list) else [] if result is None else [result]
    return [_encode(it).decode() for it in results]
