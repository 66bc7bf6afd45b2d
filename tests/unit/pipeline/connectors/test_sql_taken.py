"""Keys as ranges that nothing can come between."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import ConfigError, MissingExtraError
from postroad.pipeline.connectors import SqlInput
from postroad.pipeline.connectors.sql.connections import quote, quote_table, side_table_name
from postroad.pipeline.connectors.sql.processed_keys import merge, ranges_of

NUMBERS = st.sets(st.integers(-40, 40))


def spread(ranges: list[tuple[int, int]]) -> list[int]:
    return [number for low, high in ranges for number in range(low, high + 1)]


@given(NUMBERS)
def test_ranges_have_exactly_the_keys(numbers: set[int]) -> None:
    ranges = ranges_of(sorted(numbers))
    assert spread(ranges) == sorted(numbers)  # type: ignore[arg-type]
    highs = {high for _, high in ranges}
    assert not any(isinstance(low, int) and low - 1 in highs for low, _ in ranges)


@given(NUMBERS, st.data())
def test_it_does_not_matter_in_which_order_ranges_are_merged(
    numbers: set[int], data: st.DataObject
) -> None:
    some = data.draw(st.sets(st.sampled_from(sorted(numbers)))) if numbers else set()
    first = merge((it, it) for it in some)
    rest = merge((it, it) for it in numbers - some)
    assert merge([*first, *rest]) == merge((it, it) for it in numbers)


def test_texts_stay_by_themselves() -> None:
    assert ranges_of(["a", "b"]) == [("a", "a"), ("b", "b")]


def test_a_key_that_is_there_twice() -> None:
    with pytest.raises(ConfigError, match="'b' is in two rows"):
        ranges_of(["a", "b", "b"])


def test_names() -> None:
    assert quote('a"b.c') == '"a""b.c"'
    assert quote_table("schema.table") == '"schema"."table"'
    assert side_table_name("schema.table", "job") == "schema.table_postroad_job"
    for name in ("", "a?", "a\0"):
        with pytest.raises(ConfigError):
            quote(name)


def test_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "postroad.pipeline.connectors.sql.postgres", raising=False)
    with pytest.raises(MissingExtraError, match="the extra 'postgres'"):
        SqlInput("postgresql://host/name", "table", "key", "reader")
