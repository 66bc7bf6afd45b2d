"""Groups as bytes: one for equal values, and different ones for others."""

import enum
import math
from typing import Any

import pytest

from postroad.pipeline.windows import InvalidSegmentError, decode_group, encode_group
from postroad.pipeline.windows.encoding import decode_plain, encode_canonical


class Colour(enum.StrEnum):
    RED = "red"


def test_equal_values_are_one_group() -> None:
    for left, right in (
        (1, 1.0),
        (0.0, -0.0),
        (math.nan, -math.nan),
        ((1, 2), [1, 2.0]),
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        (Colour.RED, "red"),
    ):
        assert encode_group(left) == encode_group(right), (left, right)


def test_different_values_are_different_groups() -> None:
    values: list[Any] = [
        None, False, True, 0, 1, 2, -1, 1.5, math.inf, 1e300, "", "1", b"1", "true", [], [1],
        [[1]], [1, 2], ["1", 2], {}, {"a": 1}, {"a": "1"}, {"a": None}, 2**64 - 1, -(2**63),
    ]  # fmt: skip
    assert len({encode_group(value) for value in values}) == len(values)
    assert [decode_group(encode_group(value)) for value in values] == values


def test_what_is_not_plain_is_refused() -> None:
    for value in ({1}, object(), 2**64, {1: 2}, [{"a": (1, 2j)}], "\ud800"):
        with pytest.raises(InvalidSegmentError):
            encode_group(value)


def test_values_that_are_kept_keep_their_type() -> None:
    value = {"whole": 1, "part": 1.0, "items": (1, 2)}
    found = decode_plain(encode_canonical(value))
    assert found == {"whole": 1, "part": 1.0, "items": [1, 2]}
    assert isinstance(found["part"], float)
