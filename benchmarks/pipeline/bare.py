"""The same functions in Spark without Postroad: as fast as Spark can, and the obvious way."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.pipeline.functions import first, left, right

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 512
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


def measure_operators(session: SparkSession, source: Path, target: Path, count: int) -> float:
    """A user-defined function of Spark for each function, into Parquet: segments per second."""
    from pyspark.sql.functions import explode, udf

    first_udf = udf(_first_text, "array<string>")
    left_udf = udf(_left_text, "array<string>")
    right_udf = udf(_right_text, "array<string>")
    started_s = time.perf_counter()
    lines = session.read.text(str(source))
    made = lines.select(explode(first_udf("value")).alias("value")).persist()
    for name, function in (("a", left_udf), ("b", right_udf)):
        written = made.select(explode(function("value")).alias("value"))
        written.write.mode("overwrite").parquet(str(target / name))
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
