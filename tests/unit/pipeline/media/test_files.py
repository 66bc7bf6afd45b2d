"""Files by how their names end, and media by their names in jobs."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline import LinesInput, Task, TaskType, make_input, make_output
from postroad.pipeline.media import (
    CsvInput,
    ParquetInput,
    ParquetOutput,
    SqlInput,
    SqlOutput,
    files_input,
)


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("in/*.jsonl", {}, LinesInput),
        ("in.ndjson", {}, LinesInput),
        ("in.CSV", {}, CsvInput),
        ("in.tsv", {}, CsvInput),
        ("in/*.parquet", {"slice_segments": 5}, ParquetInput),
        ("in.txt", {"format": "csv", "delimiter": ";"}, CsvInput),
        ("in.csv", {"format": "lines"}, LinesInput),
    ],
)
def test_the_format(path: str, options: dict[str, Any], expected: type) -> None:
    task = Task(name="in", type=TaskType.INPUT, medium="files", options={"path": path} | options)
    assert type(make_input(task)) is expected


@pytest.mark.parametrize("options", [{"path": "in.txt"}, {"path": "in.csv", "format": "excel"}])
def test_a_format_that_is_not_known(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'format'"):
        files_input(**options)


def test_options_of_another_format() -> None:
    options = {"path": "in.jsonl", "delimiter": ";"}
    task = Task(name="in", type=TaskType.INPUT, medium="files", options=options)
    with pytest.raises(ConfigError, match=r"options of 'in' do not suit 'files'.*delimiter"):
        make_input(task)


async def test_values_with_tabs_between(tmp_path: Any) -> None:
    (tmp_path / "in.tsv").write_text("a\tb\n1,5\t2\n")
    medium = files_input(str(tmp_path / "in.tsv"))
    (only,) = await medium.cut(None, 10)
    ((_, _, raws),) = medium.read(only.place)
    assert [medium.decode(it) for it in raws] == [{"a": "1,5", "b": "2"}]


def test_media_of_jobs() -> None:
    table = {"database": "x.db", "table": "t"}
    task = Task(
        name="in", type=TaskType.INPUT, medium="sql", options=table | {"key": "k", "reader": "r"}
    )
    assert type(make_input(task)) is SqlInput
    task = Task(name="out", type=TaskType.OUTPUT, medium="sql", options=table)
    assert type(make_output(task)) is SqlOutput
    task = Task(name="out", type=TaskType.OUTPUT, medium="parquet", options={"path": "out"})
    assert type(make_output(task)) is ParquetOutput
