"""Rows of Parquet files: what values become, and which segments fit."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline import Segment
from postroad.pipeline.connectors import ParquetInput, ParquetOutput, UnwritableSegmentsError

AT = datetime(2024, 2, 29, 12, 0, 1, 500, tzinfo=UTC)


async def read_all(connector: ParquetInput) -> list[Segment]:
    await connector.open([])
    slices = await connector.plan_splits(None, 1_000_000)
    chunks = [chunk for it in slices for chunk in connector.read(it.position)]
    return [connector.decode(raw) for it in chunks for raw in it.raws]


async def write(path: Path, segments: list[Segment], schema: dict[str, str] | None = None) -> Any:
    """The table that comes of segments whose ids are their places."""
    output = ParquetOutput(str(path), schema)
    await output.open("job", [])
    stager = output.create_writer("job-1")
    try:
        stager.write(range(len(segments)), segments)
        staged = stager.prepare_commit()
    except BaseException:
        stager.abort()
        raise
    assert staged is not None
    await output.commit(staged)
    return pyarrow.parquet.read_table(path / "job-1.parquet")


async def test_values_of_every_kind(tmp_path: Path) -> None:
    columns = {
        "int": (pyarrow.int32(), 7, 7),
        "none": (pyarrow.int64(), None, None),
        "bytes": (pyarrow.binary(), b"\xff", b"\xff"),
        "word": (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), "x", "x"),
        "list": (pyarrow.list_(pyarrow.int64()), [1, None], [1, None]),
        "struct": (pyarrow.struct([("a", pyarrow.string())]), {"a": "b"}, {"a": "b"}),
        "map": (pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("k", 1)], [["k", 1]]),
        "at": (pyarrow.timestamp("us", "UTC"), AT, AT),
        "at_ns": (pyarrow.timestamp("ns", "UTC"), AT, AT),
        "naive": (pyarrow.timestamp("ms"), datetime(2024, 1, 2), "2024-01-02T00:00:00"),
        "date": (pyarrow.date32(), date(2024, 2, 29), "2024-02-29"),
        "decimal": (pyarrow.decimal128(10, 2), Decimal("1.50"), "1.50"),
    }
    arrays = [pyarrow.array([value], type) for type, value, _ in columns.values()]
    table = pyarrow.Table.from_arrays(arrays, names=list(columns))
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    (row,) = await read_all(ParquetInput(str(tmp_path / "in.parquet")))
    assert row == {name: expected for name, (_, _, expected) in columns.items()}


async def test_some_columns(tmp_path: Path) -> None:
    table = pyarrow.table({"a": [1, 2], "b": ["x", "y"], "c": [0, 0]})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    path = str(tmp_path / "in.parquet")
    assert await read_all(ParquetInput(path, columns=["b"])) == [{"b": "x"}, {"b": "y"}]
    with pytest.raises(ConfigError, match="no d"):
        await ParquetInput(path, columns=["d"]).open([])


async def test_rows_are_counted_over_the_whole_file(tmp_path: Path) -> None:
    table = pyarrow.table({"n": list(range(20_000))})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=13_000)
    connector = ParquetInput(str(tmp_path / "in.parquet"), split_segments=6_000)
    slices = [*await connector.plan_splits(None, 19_000)]
    assert [it.estimated_segments for it in slices] == [6_000, 6_000, 1_000, 6_000]
    slices += await connector.plan_splits(slices[-1].next_position, 19_000)
    assert await connector.plan_splits(slices[-1].next_position, 19_000) == []
    chunks = [chunk for it in slices for chunk in connector.read(it.position)]
    assert [at for it in chunks for at in it.positions] == list(range(20_000))
    found = [connector.decode(raw)["n"] for it in chunks for raw in it.raws]
    assert found == list(range(20_000))
    assert max(len(it.raws) for it in chunks) <= 5_000


async def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(OSError, match=r"in\.parquet"):
        await ParquetInput(str(path)).open([])
    path.unlink()
    with pytest.raises(ConfigError, match="there is no file"):
        await ParquetInput(str(path)).open([])
    with pytest.raises(ConfigError, match="split_segments"):
        ParquetInput(str(path), split_segments=0)


async def test_a_file_that_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3]}), path)
    connector = ParquetInput(str(path))
    (only,) = await connector.plan_splits(None, 10)
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2]}), path)
    with pytest.raises(OSError, match="fewer rows"):
        list(connector.read(only.position))


async def test_a_schema(tmp_path: Path) -> None:
    schema = {
        "n": "int16",
        "d": "decimal(6, 2)",
        "at": "timestamp[ms, tz=UTC]",
        "list": "list<double>",
        "day": "date32",
    }
    segment = {"n": 1, "d": Decimal("1.5"), "at": AT, "list": [1, 2], "day": date(2024, 1, 1)}
    table = await write(tmp_path, [segment, {"n": 2}], schema)
    assert table.schema.field("d").type == pyarrow.decimal128(6, 2)
    assert table.schema.field("at").type == pyarrow.timestamp("ms", "UTC")
    assert table.column("list").to_pylist() == [[1.0, 2.0], None]
    assert table.column("n").to_pylist() == [1, 2]


async def test_types_are_those_of_the_first_segments(tmp_path: Path) -> None:
    table = await write(tmp_path, [{"a": None, "b": 1}, {"a": "x", "c": 1.5}, {"e": None}])
    assert [(it.name, str(it.type)) for it in table.schema] == [
        ("a", "string"),
        ("b", "int64"),
        ("c", "double"),
        ("e", "string"),
    ]
    assert table.to_pylist()[1] == {"a": "x", "b": None, "c": 1.5, "e": None}


async def test_segments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    segments: list[Segment] = [{"n": 1}, {"n": "two"}, {"n": 3, "m": 3}, {"n": 1 << 40}, {}]
    with pytest.raises(UnwritableSegmentsError) as refused:
        await write(tmp_path, segments, {"n": "int32"})
    assert set(refused.value.reasons) == {1, 2, 3}
    assert "'n' is not int32" in refused.value.reasons[1]
    assert "no column for 'm'" in refused.value.reasons[2]
    assert list((tmp_path / "_staging").iterdir()) == []


async def test_segments_unlike_the_first_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnwritableSegmentsError) as refused:
        await write(tmp_path, [{"n": 1}, {"n": "two"}, {"n": 3}])
    assert set(refused.value.reasons) == {1}


async def test_segments_with_nothing_in_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnwritableSegmentsError) as refused:
        await write(tmp_path, [{}, {}])
    assert set(refused.value.reasons) == {0, 1}
    assert (await write(tmp_path, [{"n": 1}, {}])).to_pylist() == [{"n": 1}, {"n": None}]


async def test_groups_are_of_middling_size(tmp_path: Path) -> None:
    output = ParquetOutput(str(tmp_path))
    await output.open("job", [])
    stager = output.create_writer("job-1")
    for start in range(0, 150_000, 10_000):
        ids = range(start, start + 10_000)
        stager.write(ids, [{"n": n} for n in ids])
    staged = stager.prepare_commit()
    assert staged is not None
    await output.commit(staged)
    metadata = pyarrow.parquet.read_metadata(tmp_path / "job-1.parquet")
    assert metadata.num_rows == 150_000
    assert 2 <= metadata.num_row_groups <= 5


@pytest.mark.parametrize("schema", [{}, ["n"], {"n": 1}, {"n": "integer"}, {"n": "list<integer>"}])
async def test_schemas_that_are_wrong(tmp_path: Path, schema: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="'schema'"):
        await ParquetOutput(str(tmp_path), schema).open("job", [])


async def test_without_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "in.parquet").touch()
    with pytest.raises(MissingExtraError, match="the extra 'parquet'"):
        await ParquetInput(str(tmp_path / "in.parquet")).open([])
    with pytest.raises(MissingExtraError, match="the extra 'parquet'"):
        await ParquetOutput(str(tmp_path)).open("job", [])
