"""The rules of the workflow and of the catalog, each told of the right entry."""

from typing import Any

import pytest

from tests.support.pipeline.jobs import (
    IN,
    OUT,
    PARSE,
    TOTAL,
    Data,
    broken,
    clearing_data,
    complaints,
)

# The workflow.


def edges(*added: list[Any]) -> Data:
    data = clearing_data()
    data["workflow"] += added
    return data


def test_edges() -> None:
    for data, complaint in (
        (
            edges(["parse", "total"]),
            "workflow edge 5 ('parse' to 'total'): repeats workflow edge 2 ('parse' to 'total')",
        ),
        (edges(["parse", "parse"]), "workflow: has a cycle: 'parse' -> 'parse'"),
        (edges(["total", "parse"]), "workflow: has a cycle: 'parse' -> 'total' -> 'parse'"),
        (edges(["total", "in"]), "catalog 'in': is an input: no edge may lead to it"),
        (edges(["out", "errors"]), "catalog 'out': is an output: no edge may leave it"),
        (
            edges(["total", "errorz"]),
            "workflow edge 5 ('total' to 'errorz'): "
            "'errorz' is not in the catalog; did you mean 'errors'?",
        ),
        (
            edges(["total", "all"]),
            "workflow edge 5 ('total' to 'all'): 'all' is not in the catalog; "
            "known: 'in', 'parse', 'total', 'out', 'errors'",
        ),
        (
            edges(["total"]),
            "workflow edge 5: ['total'] is no pair of names like ['parse', 'store']",
        ),
    ):
        assert complaint in complaints(data), (data, complaint)


def test_every_cycle_is_reported() -> None:
    data = edges(["total", "total"], ["parse", "parse"])
    assert [it for it in complaints(data) if "cycle" in it] == [
        "workflow: has a cycle: 'parse' -> 'parse'",
        "workflow: has a cycle: 'total' -> 'total'",
    ]


def test_tasks_that_are_not_connected() -> None:
    for removed, complaint in (
        (["in", "parse"], "catalog 'parse': is a function: an edge must lead to it"),
        (["in", "parse"], "catalog 'in': is not used in the workflow"),
        (["total", "out"], "catalog 'total': is a function: an edge must leave it"),
        (["total", "out"], "catalog 'out': is not used in the workflow"),
    ):
        data = clearing_data()
        data["workflow"].remove(removed)
        assert complaint in complaints(data), (removed, complaint)


def test_a_misspelt_edge_is_reported_once_and_then_taken_for_what_was_meant() -> None:
    data = clearing_data()
    data["workflow"][0] = ["in", "prase"]
    assert complaints(data) == [
        "workflow edge 1 ('in' to 'prase'): 'prase' is not in the catalog; did you mean 'parse'?"
    ]


# The catalog.

CATALOG: list[tuple[int, Data, str]] = [
    (IN, {"name": "all"}, "catalog 'all': the name 'all' is reserved"),
    (OUT, {"name": "none"}, "catalog 'none': the name 'none' is reserved"),
    (IN, {"name": ""}, "catalog '': name '' must be printable characters, one or more"),
    (IN, {"name": "a\n"}, r"catalog 'a\n': name 'a\n' must be printable characters, one or more"),
    (OUT, {"name": "parse"}, "catalog 'parse': is there 2 times"),
    (PARSE, {"fn": None}, "catalog 'parse': a function of kind 'segment' needs fn"),
    (PARSE, {"fn": None, "kind": "arrow"}, "catalog 'parse': a function of kind 'arrow' needs fn"),
    (
        PARSE,
        {"kind": "sql", "expressions": {"a": "b"}, "columns": {"b": "int"}},
        "catalog 'parse': kind 'sql' has expressions and no fn",
    ),
    (
        PARSE,
        {"fn": None, "kind": "sql", "columns": {"b": "int"}},
        "catalog 'parse': kind 'sql' needs at least one expression",
    ),
    (
        PARSE,
        {"fn": None, "kind": "sql", "expressions": {"a": "b"}},
        "catalog 'parse': kind 'sql' needs at least one column",
    ),
    (
        PARSE,
        {"fn": None, "kind": "sql", "expressions": {"a": "b"}, "columns": {"b": "x", "B": "y"}},
        "catalog 'parse': columns has 'b' 2 times: upper and lower case are one",
    ),
    (
        PARSE,
        {"fn": None, "kind": "sql", "expressions": {"a": "1"}, "columns": {"_postroad_a": "int"}},
        "catalog 'parse': column '_postroad_a': names that begin so are reserved",
    ),
    (
        IN,
        {"kind": "sql", "expressions": {"a": "b"}, "columns": {"b": "int"}},
        "catalog 'in': kind 'sql' is for functions and outputs only",
    ),
    (
        PARSE,
        {"columns": {"a": "int"}},
        "catalog 'parse': columns are for kind 'sql' and 'dataframe' only",
    ),
    (PARSE, {"expressions": {"a": "b"}}, "catalog 'parse': expressions are for kind 'sql' only"),
    (
        PARSE,
        {"fn": None, "kind": "sql", "expressions": {"a": " "}, "columns": {"b": "int"}},
        "catalog 'parse': expression 'a'=' ' needs a name and a text",
    ),
    (TOTAL, {"fn": None}, "catalog 'total': params without fn mean nothing"),
    (OUT, {"time_limit_s": 1.0}, "catalog 'out': time_limit_s without fn means nothing"),
    (
        PARSE,
        {"time_limit_s": 0.0},
        "catalog 'parse': time_limit_s=0.0 must be a finite number above 0",
    ),
    (IN, {"group_by": "a"}, "catalog 'in': group_by is for functions and outputs only"),
    (PARSE, {"group_by": ""}, "catalog 'parse': group_by='' must not be empty"),
    (OUT, {"group_by": []}, "catalog 'out': group_by=[] must not be empty"),
    (OUT, {"group_by": ["a", ""]}, "catalog 'out': group_by=['a', ''] must not be empty"),
    (OUT, {"group_by": ["a", "a"]}, "catalog 'out': group_by has 'a' 2 times"),
    (IN, {"connector": None}, "catalog 'in': an input needs a connector"),
    (OUT, {"connector": ""}, "catalog 'out': an output needs a connector"),
    (PARSE, {"connector": "memory"}, "catalog 'parse': a function has no connector"),
    (
        PARSE,
        {"options": {"a": 1}},
        "catalog 'parse': options are for a connector, and a function has none",
    ),
    (PARSE, {"batch_size": 3}, "catalog 'parse': batch_size is for inputs only"),
    (OUT, {"max_pending": 3}, "catalog 'out': max_pending is for inputs only"),
    (OUT, {"pending_timeout_s": 3}, "catalog 'out': pending_timeout_s is for inputs only"),
    (PARSE, {"retry": {"attempts": 2}}, "catalog 'parse': retry is for inputs only"),
    (IN, {"batch_size": 0}, "catalog 'in': batch_size=0 must be a finite number above 0"),
    (IN, {"max_pending": -1}, "catalog 'in': max_pending=-1 must be a finite number above 0"),
    (
        IN,
        {"pending_timeout_s": float("inf")},
        "catalog 'in': pending_timeout_s=inf must be a finite number above 0",
    ),
    (IN, {"max_pending": 99}, "catalog 'in': max_pending=99 is less than batch_size=100"),
    (
        IN,
        {"retry": {"attempts": 0}},
        "catalog 'in': retry.attempts=0 must be a finite number above 0",
    ),
    (
        IN,
        {"retry": {"first_s": 9, "max_s": 8}},
        "catalog 'in': retry.first_s=9.0 is more than retry.max_s=8.0",
    ),
]


def test_tasks() -> None:
    for place, keys, complaint in CATALOG:
        assert complaint in complaints(broken("catalog", place, **keys)), (place, keys, complaint)


@pytest.mark.parametrize(
    "path", ["parse", "bank.parse", ":parse", "bank:", "a-b:c", "a:b:c", "a..b:c", ""]
)
@pytest.mark.parametrize(
    ("section", "place", "key"),
    [
        ("catalog", PARSE, "fn"),
        ("flow_conditions", 0, "predicate"),
        ("flow_conditions", 2, "post_transform"),
        ("triggers", 0, "emit"),
        ("lifecycles", 0, "hooks"),
    ],
)
def test_import_paths(section: str, place: int, key: str, path: str) -> None:
    (complaint,) = complaints(broken(section, place, **{key: path}))
    assert complaint.endswith(f"{key} {path!r} is not an import path like 'package.module:name'")


def test_a_name_in_a_class_has_an_import_path_as_well() -> None:
    assert complaints(broken("catalog", PARSE, fn="bank.parsing:Parser.parse")) == []


def test_what_is_handed_on_is_plain_data() -> None:
    for key in ("params", "options"):
        data = broken("catalog", OUT, fn="bank.sums:show", **{key: {"what": print}})
        (complaint,) = complaints(data)
        assert complaint.startswith(
            f"catalog 'out': {key}.what=<built-in function print> is not plain"
        ), key
