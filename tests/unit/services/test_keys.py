"""Cache keys; those of the first form were made by the original system."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.services.keys import exact_key, moleculer_key, stored_name
from tests.support.cases import each

TEXT = "0123456789" * 7
HASH = "nfMMt750e3DW9EAAjn8VTUOx0olY2fby7jMY7tDnSFM="


@each(
    (
        {"id": 2, "title": "New", "tags": ["a", None, True], "at": {"x": 1.5}},
        'id|2|title|"New"|tags|["a"|null|true]|at|x|1.5',
    ),
    ({"b": 1, "10": 2, "2": 3}, "2|3|10|2|b|1"),
    ({"01": 1, "0": 2, "99999999999": 3}, "0|2|01|1|99999999999|3"),
    ({}, ""),
    (None, "null"),
    (
        {"at": datetime(2026, 1, 2, tzinfo=UTC), "on": date(1970, 1, 2)},
        "at|1767312000000|on|86400000",
    ),
    ({"at": datetime(1970, 1, 1, 0, 0, 1)}, "at|1000"),
    (b"\x01\xff", "0|1|1|255"),
    (1 + 2j, "(1+2j)"),
)
def test_all_params_count(params: Any, described: str) -> None:
    assert moleculer_key("posts.find", params) == f"posts.find:{described}"


@each(
    (["id"], "posts.find:2"),
    (["id", "#user.id", "gone", "@h"], 'posts.find:2|"x"|undefined|undefined'),
    (["none"], "posts.find:null"),
    (["list.1.a", "list[0]", "list.7"], "posts.find:5|4|undefined"),
    (["a.b"], "posts.find:6"),
    ([], "posts.find"),
)
def test_chosen_values_count(keys: list[str], key: str) -> None:
    params = {"id": 2, "none": None, "list": [4, {"a": 5}], "a.b": 6}
    assert moleculer_key("posts.find", params, {"user": {"id": "x"}}, {}, keys=keys) == key


@each(
    (0, f'text|"{TEXT}"'),
    (43, f'text|"{TEXT}"'),
    (44, HASH),
    (60, f'text|"0123456789{HASH}'),
    (77, f'text|"{TEXT}"'),
)
def test_long_keys_end_with_a_hash(length_max: int, described: str) -> None:
    key = moleculer_key("a", {"text": TEXT}, length_max=length_max)
    assert key == f"a:{described}"


def test_long_keys_are_shortened_and_names_prefixed() -> None:
    params = {"a": list(range(1, 22)), "b": "x"}
    key = moleculer_key("posts.find", params, keys=["a", "b"], length_max=50)
    assert key == "posts.find:[1|2|3iwQi7I0M+nElwB/082cUKeZyVIO20JsPA4UXlUZvUvI="
    assert stored_name("a:1") == "MOL-a:1"
    assert stored_name("a:1", "dev") == "MOL-dev-a:1"
    assert stored_name("a:1", "dev", "mine") == "mine-a:1"


def test_exact_keys_differ_where_values_do() -> None:
    one, other = {"a": 'x"|"y', "b": "z"}, {"a": "x", "b": 'y"|"z'}
    keys = ["a", "b"]
    assert moleculer_key("p", one, keys=keys) == moleculer_key("p", other, keys=keys)
    assert exact_key("p", one, keys=keys) != exact_key("p", other, keys=keys)
    assert exact_key("p", ["a1:b"]) != exact_key("p", ["a", "b"])
    assert exact_key("p", ["s1:b"]) != exact_key("p", ["", "b"])
    assert exact_key("p", {"a": 1, "b": 2}) == exact_key("p", {"b": 2.0, "a": 1})
    assert exact_key("p", [1, 2]) != exact_key("p", [2, 1])
    assert exact_key("p", {"a": 1}, {"b": 2}, {"c": 3}, keys=["a", "#b", "@c", "d"]) == (
        "p:[#1;#2;#3;n]"
    )
    assert len(exact_key("p", TEXT, length_max=50)) == 52


@each(
    (None, "n"),
    ([True, False, 1, 1.5, "1"], "[tf#1;#1.5;s1:1]"),
    ({"b": {}, "a": []}, "{s1:a[]s1:b{}}"),
    (b"\x01", "b2:01"),
    (date(2026, 1, 2), "o4:date10:2026-01-02"),
)
def test_how_values_are_described(value: Any, described: str) -> None:
    assert exact_key("p", value) == f"p:{described}"


def test_values_that_contain_themselves_have_no_key() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="nested"):
        exact_key("p", endless)
    with pytest.raises(UsageError, match="nested"):
        moleculer_key("p", endless)
