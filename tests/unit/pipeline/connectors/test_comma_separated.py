"""Records of comma-separated values: where they end, and what they are."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors import CsvInput, RawRecords, Split

# Everything that has a meaning in such files, and some that has none.
CHARACTERS = 'ab",;\n\r \u2028\x0bä'
VALUES = st.text(CHARACTERS, max_size=6)


async def read_all(
    connector: CsvInput, segments: int = 1_000
) -> tuple[list[Split], list[RawRecords]]:
    await connector.open([])
    slices: list[Split] = []
    while found := await connector.plan_splits(
        slices[-1].next_position if slices else None, segments
    ):
        slices += found
    return slices, [chunk for it in slices for chunk in connector.read(it.position)]


def segments_of(connector: CsvInput, chunks: list[RawRecords]) -> list[Any]:
    """Segments, and the bytes of what is none."""
    found: list[Any] = []
    for raw in (raw for it in chunks for raw in it.raws):
        try:
            found.append(connector.decode(raw))
        except ValueError as error:
            assert "does not match" in str(error)
            found.append(raw)
    return found


async def read_text(path: Path, text: str | bytes, **options: Any) -> list[Any]:
    content = text if isinstance(text, bytes) else text.encode()
    (path / "in.csv").write_bytes(content)
    connector = CsvInput(str(path / "in.csv"), settle_s=0, **options)
    _, chunks = await read_all(connector)
    return segments_of(connector, chunks)


async def test_values_are_text(tmp_path: Path) -> None:
    assert await read_text(tmp_path, "a,b\r\n1,\r\n 2 ,x\r\n") == [
        {"a": "1", "b": ""},
        {"a": " 2 ", "b": "x"},
    ]


async def test_line_ends_between_quotation_marks_are_values(tmp_path: Path) -> None:
    text = 'a,b\n"1\n\n2","say ""x""\r\n"\n3,4\n'
    for split_bytes in (1, 1_000):
        assert await read_text(tmp_path, text, split_bytes=split_bytes) == [
            {"a": "1\n\n2", "b": 'say "x"\r\n'},
            {"a": "3", "b": "4"},
        ]


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8), st.integers(1, 60))
async def test_whatever_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], split_bytes: int
) -> None:
    text = StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([("a", "b"), *rows])
    path = tmp_path_factory.mktemp("csv")
    found = await read_text(path, text.getvalue(), split_bytes=split_bytes)
    assert found == [{"a": a, "b": b} for a, b in rows]


async def test_a_record_keeps_its_position_however_it_is_cut(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('a\n1\n\n"2\n2"\n3\n')
    for split_bytes in (1, 5, 100):
        for segments in (1, 2, 100):
            connector = CsvInput(str(tmp_path / "in.csv"), split_bytes=split_bytes)
            slices, chunks = await read_all(connector, segments)
            assert [at for it in chunks for at in it.positions] == [2, 5, 11]
            assert sum(it.estimated_segments for it in slices) == 3


async def test_a_quotation_mark_that_is_never_closed_harms_its_line_only(tmp_path: Path) -> None:
    text = 'a,b\n1,2\n"3,4\n5,6\n"7"x,8\n9,"0"\n'
    assert await read_text(tmp_path, text) == [
        {"a": "1", "b": "2"},
        b'"3,4\n',
        {"a": "5", "b": "6"},
        b'"7"x,8\n',
        {"a": "9", "b": "0"},
    ]


async def test_records_that_do_not_fit_are_none(tmp_path: Path) -> None:
    content = b"a,b\n1\n1,2,3\n\xff,2\n\x82\xa1a\xa11\xa1b\xa12\n1,2"
    assert await read_text(tmp_path, content) == [
        b"1\n",
        b"1,2,3\n",
        b"\xff,2\n",
        # It would be a segment in MsgPack, but for the line end.
        b"\x82\xa1a\xa11\xa1b\xa12\n",
        {"a": "1", "b": "2"},
    ]


async def test_what_looks_like_a_packed_segment_is_none(tmp_path: Path) -> None:
    assert await read_text(tmp_path, b"a,b\n\x80") == [repr(b"\x80").encode()]


async def test_types(tmp_path: Path) -> None:
    columns = {"i": "int", "f": "float", "b": "bool", "t": "text"}
    text = "i,f,b,t,u\n1,1.5,true,,x\n,,,,\n-2,nan?,0,t,u\n1,1,maybe,t,u\n7,1,FALSE,t,u\n"
    assert await read_text(tmp_path, text, columns=columns) == [
        {"i": 1, "f": 1.5, "b": True, "t": "", "u": "x"},
        {"i": None, "f": None, "b": None, "t": "", "u": ""},
        b"-2,nan?,0,t,u\n",
        b"1,1,maybe,t,u\n",
        {"i": 7, "f": 1.0, "b": False, "t": "t", "u": "u"},
    ]


async def test_a_type_for_a_name_that_is_not_there_fits_nothing(tmp_path: Path) -> None:
    assert await read_text(tmp_path, "a\n1\n", columns={"b": "int"}) == [b"1\n"]


async def test_a_mark_at_the_beginning_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert await read_text(tmp_path, b'\xef\xbb\xbf"a",b\n1,2\n') == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("text", ["", "a,b", "a,b\n", "a,b\n\n\r\n"])
async def test_files_without_records(tmp_path: Path, text: str) -> None:
    assert await read_text(tmp_path, text) == []


async def test_each_file_has_its_own_names(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("b\n3\n")
    connector = CsvInput(str(tmp_path / "*.csv"))
    _, chunks = await read_all(connector)
    assert segments_of(connector, chunks) == [{"a": "1", "b": "2"}, {"b": "3"}]
    assert [it.source for it in chunks] == [str(tmp_path / f"{it}.csv") for it in (1, 2)]


async def test_a_file_that_vanishes_or_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("a\n1\n2\n")
    connector = CsvInput(str(path))
    slices, _ = await read_all(connector)
    path.write_text("a\n1\n")
    with pytest.raises(OSError, match="shorter"):
        list(connector.read(slices[0].position))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(connector.read(slices[0].position))
    with pytest.raises(ConfigError, match="there is no file"):
        await connector.open([])


async def test_long_lines_are_whole(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    assert await read_text(tmp_path, f"a,b\n1,{long}\n2,y\n") == [
        {"a": "1", "b": long},
        {"a": "2", "b": "y"},
    ]


async def test_a_file_that_is_one_endless_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.pipeline.connectors.files.csv._LINE_BYTES_MAX", 100)
    with pytest.raises(OSError, match="100 bytes or more"):
        await read_text(tmp_path, "a\n" + "x" * 200)


def test_options_that_are_wrong() -> None:
    for options, named in (
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": "::"}, "delimiter"),
        ({"delimiter": '"'}, "delimiter"),
        ({"delimiter": 1}, "delimiter"),
        ({"columns": {"a": "integer"}}, "columns"),
        ({"columns": ["a"]}, "columns"),
        ({"columns": {"a": 1}}, "columns"),
    ):
        with pytest.raises(ConfigError, match=named):
            CsvInput("in.csv", **options)
