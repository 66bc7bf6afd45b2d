"""What segments add up to: exactly, in any order, and refused where it means nothing."""

import math
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Segment, Window, WindowType
from postroad.pipeline.windows import Aggregation, InvalidSegmentError
from postroad.pipeline.windows.aggregations import BUILT_IN, aggregation_of

NO_NUMBERS: list[Any] = ["1", None, True, math.nan, math.inf]
UNORDERED: list[Any] = [None, True, math.nan, []]


def result_of(name: str, values: list[Any], key: str | None = "x") -> Any:
    aggregation = BUILT_IN[name](key)
    state = aggregation.init()
    for value in values:
        state = aggregation.add(state, {"x": value})
    return aggregation.result(state)


def test_result() -> None:
    for name, values, expected in (
        ("count", [None, "a", 3], 3),
        ("count", [], 0),
        ("sum", [1, 2, 3], 6),
        ("sum", [], 0),
        ("sum", [0.1] * 10, 1.0),
        ("sum", [1e16, 1.0, -1e16], 1.0),
        ("sum", [5e-324, 1.7e308, -1.7e308], 5e-324),
        ("sum", [2**64 - 1, 1], float(2**64)),
        ("sum", [2**64 - 1, 1, -1], 2**64 - 1),
        ("sum", [1.7e308, 1.7e308], math.inf),
        ("sum", [-1.7e308, -1.7e308], -math.inf),
        ("average", [1, 2], 1.5),
        ("average", [1.7e308, 1.7e308], 1.7e308),
        ("average", [], None),
        ("min", [3, 1.5, 2], 1.5),
        ("min", [], None),
        ("max", [3, 1.5, 2], 3),
        ("min", ["b", "a"], "a"),
        ("max", ["a", 7], "a"),
        ("collect", [{"a": None}, 2.0, [2]], [{"a": None}, [2], 2.0]),
    ):
        found = result_of(name, values)
        assert found == expected, (name, values, expected)
        assert type(found) is type(expected), (name, values, expected)


def test_a_value_that_does_not_fit_is_refused() -> None:
    for name, value in (
        *[("sum", value) for value in NO_NUMBERS],
        *[("average", value) for value in NO_NUMBERS],
        *[("min", value) for value in UNORDERED],
        ("max", None),
        ("sum", 2**64),
        ("collect", {1, 2}),
        ("collect", {"a": object()}),
        ("collect", {1: "a"}),
        ("collect", "\ud800"),
    ):
        with pytest.raises(InvalidSegmentError):
            result_of(name, [value])


def test_a_missing_key_is_named() -> None:
    for name in ("sum", "average", "min", "max", "collect"):
        with pytest.raises(InvalidSegmentError, match="no key 'y'"):
            result_of(name, [1], key="y")


def test_a_key_is_needed() -> None:
    for name in ("sum", "average", "min", "max"):
        with pytest.raises(ConfigError, match=f"'{name}' needs a key"):
            BUILT_IN[name](None)


def test_collect_goes_by_order_tokens() -> None:
    collect = BUILT_IN["collect"](None)
    late = collect.add_in_order(collect.init(), {"n": 1}, b"2")
    early = collect.add_in_order(collect.init(), {"n": 2}, b"1")
    assert collect.result(collect.merge(late, early)) == [{"n": 2}, {"n": 1}]
    many = [collect.add_in_order(collect.init(), {"n": n}, bytes([n])) for n in range(20)]
    whole = collect.init()
    for state in reversed(many):
        whole = collect.merge(whole, state)
    assert collect.result(whole) == [{"n": n} for n in range(20)]


def test_equal_numbers_of_two_types_are_chosen_from_the_same_way() -> None:
    for name in ("min", "max"):
        found = {repr(result_of(name, values)) for values in ([1, 1.0], [1.0, 1])}
        assert len(found) == 1


class Longest(Aggregation):
    """One of a user."""

    def init(self) -> str:
        return ""

    def add(self, state: str, segment: Segment) -> str:
        return self.merge(state, str(segment[self.key or "name"]))

    def merge(self, left: str, right: str) -> str:
        return max(left, right, key=lambda text: (len(text), text))

    def result(self, state: str) -> str:
        return state


def window_of(aggregation: str, key: str | None = None) -> Window:
    return Window(name="w", task="t", type=WindowType.GLOBAL, aggregation=aggregation, key=key)


def test_a_custom_aggregation_is_a_class_or_an_object() -> None:
    of_class = aggregation_of(window_of("m:Longest", "title"), lambda path: Longest)
    assert of_class.result(of_class.add_in_order(of_class.init(), {"title": "abc"}, b"")) == "abc"
    one = Longest()
    assert aggregation_of(window_of("m:one"), lambda path: one) is one


def test_what_is_no_aggregation_is_refused() -> None:
    with pytest.raises(ConfigError, match="'m:one' is no Aggregation; give one of average"):
        aggregation_of(window_of("m:one"), lambda path: len)
