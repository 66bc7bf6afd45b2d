"""The rules of flow conditions, windows, triggers and lifecycles, each told of the right entry."""

from typing import Any

import pytest

from tests.support.pipeline.jobs import Data, broken, clearing_data, complaints

# Flow conditions.

CONDITIONS: list[tuple[int, Data, str]] = [
    (1, {"from_": "pars"}, "from 'pars' is not in the catalog; did you mean 'parse'?"),
    (1, {"to": ["totl"]}, "to 'totl' is not in the catalog; did you mean 'total'?"),
    (1, {"to": "nonee"}, "to 'nonee' is not in the catalog; did you mean 'none'?"),
    (1, {"to": ["out"]}, "to 'out', but no edge leads there from 'parse'"),
    (1, {"from_": "all", "to": ["in"]}, "to 'in', but no edge leads there from any task"),
    (1, {"to": []}, "to is empty; write 'none' if that is meant"),
    (1, {"to": ["total", "total"]}, "to has 'total' 2 times"),
    (1, {"to": ["none"]}, "to 'none' must stand alone, not in a list"),
    (1, {"to": "all"}, "to 'all' needs short_circuit"),
    (0, {"short_circuit": None}, "to 'none' needs short_circuit"),
    (
        2,
        {"from_": "out", "to": "all"},
        "to 'all', but nothing follows 'out'",
    ),
    (2, {"short_circuit": False}, "exceptions need short_circuit"),
    (2, {"exceptions": False}, "post_transform is for exceptions only"),
    (1, {"action": "retry"}, "action 'retry' needs to 'none' and short_circuit"),
    (2, {"params": {"a": 1}}, "params without a predicate mean nothing"),
    (1, {"exclude_keys": [""]}, "exclude_keys has an empty key"),
    (1, {"predicate": {}}, "predicate needs exactly one key of 'and', 'or', 'not'"),
    (
        1,
        {"predicate": {"and": ["a:b"], "or": ["a:b"]}},
        "predicate needs exactly one key of 'and', 'or', 'not'",
    ),
    (
        1,
        {"predicate": {"notx": "a:b"}},
        "predicate has the unknown key 'notx'; did you mean 'not'?",
    ),
    (1, {"predicate": {"or": []}}, "predicate.or needs a list of one predicate or more"),
    (1, {"predicate": {"and": "a:b"}}, "predicate.and needs a list of one predicate or more"),
    (
        1,
        {"predicate": {"or": ["a:b", {"not": 3}]}},
        "predicate.or[1].not=3 is neither an import path nor a table",
    ),
    (
        1,
        {"predicate": {"or": ["a:b", "c"]}},
        "predicate.or[1] 'c' is not an import path like 'package.module:name'",
    ),
]


def test_conditions() -> None:
    for place, keys, complaint in CONDITIONS:
        data = broken("flow_conditions", place, **keys)
        source = data["flow_conditions"][place]["from"]
        assert f"flow condition {place + 1} (from {source!r}): {complaint}" in complaints(data), (
            place,
            keys,
            complaint,
        )


def condition(to: str | list[str], source: str = "parse", **keys: Any) -> Data:
    return {"from": source, "to": to, "short_circuit": isinstance(to, str), **keys}


FIRST = condition("all")
SECOND = condition("none")
THIRD = condition(["total"], short_circuit=True)
FOURTH = condition(["total"])


def test_conditions_in_order() -> None:
    for conditions in (
        [FIRST, SECOND, THIRD, FOURTH],
        [FIRST, FIRST, THIRD, THIRD],
        # These are never looked at together.
        [FOURTH, condition("none", exceptions=True)],
        [FOURTH, condition("all", source="total")],
    ):
        assert complaints({**clearing_data(), "flow_conditions": conditions}) == [], conditions


@pytest.mark.parametrize(
    ("conditions", "complaint"),
    [
        ([SECOND, FIRST], "is to 'all' and must come before flow condition 1 (from 'parse'), "
         "which is to 'none'"),
        ([THIRD, SECOND], "is to 'none' and must come before flow condition 1 (from 'parse'), "
         "which is with short_circuit"),
        ([FOURTH, THIRD], "is with short_circuit and must come before "
         "flow condition 1 (from 'parse'), which is without short_circuit"),
        ([condition("none", source="all"), FIRST], "is to 'all' and must come before "
         "flow condition 1 (from 'all'), which is to 'none'"),
        ([condition("none", exceptions=True), condition("all", exceptions=True)],
         "is to 'all' and must come before flow condition 1 (from 'parse'), which is to 'none'"),
    ],
)  # fmt: skip
def test_conditions_out_of_order(conditions: list[Data], complaint: str) -> None:
    data = {**clearing_data(), "flow_conditions": conditions}
    assert complaints(data) == [f"flow condition 2 (from 'parse'): {complaint}"]


def test_an_output_whose_function_raised_may_have_its_segment_come_again() -> None:
    again = condition("none", source="out", exceptions=True, action="retry")
    assert complaints({**clearing_data(), "flow_conditions": [again]}) == []


# Windows and triggers.

WINDOWS: list[tuple[Data, str]] = [
    ({"task": "totl"}, "task 'totl' is not in the catalog; did you mean 'total'?"),
    ({"task": "in"}, "task 'in' is not a function but an input"),
    ({"range_s": None}, "a fixed window needs range_s"),
    ({"time_key": None}, "a fixed window needs time_key"),
    ({"time_key": ""}, "a fixed window needs time_key"),
    ({"slide_s": 1}, "a fixed window has no slide_s"),
    ({"gap_s": 1}, "a fixed window has no gap_s"),
    ({"type": "sliding"}, "a sliding window needs slide_s"),
    ({"type": "session"}, "a session window needs gap_s"),
    ({"type": "session"}, "a session window has no range_s"),
    ({"type": "global"}, "a global window has no time_key"),
    ({"type": "global", "allowed_lateness_s": 1}, "a global window has no allowed_lateness_s"),
    ({"range_s": -1}, "range_s=-1.0 must be a finite number above 0"),
    (
        {"allowed_lateness_s": float("nan")},
        "allowed_lateness_s=nan must be a finite number above 0",
    ),
    (
        {"type": "sliding", "range_s": 2, "slide_s": 3},
        "slide_s=3.0 is more than range_s=2.0",
    ),
    (
        {"aggregation": "averagez"},
        "aggregation 'averagez' is neither known nor an import path; did you mean 'average'?",
    ),
    (
        {"aggregation": "xyz"},
        "aggregation 'xyz' is neither known nor an import path; "
        "known: 'average', 'collect', 'count', 'max', 'min', 'sum'",
    ),
    ({"key": None}, "aggregation 'sum' needs key"),
    ({"key": ""}, "key must not be empty"),
]


def test_windows() -> None:
    for keys, complaint in WINDOWS:
        assert f"window 'daily': {complaint}" in complaints(broken("windows", 0, **keys)), (
            keys,
            complaint,
        )


def test_windows_of_every_type() -> None:
    for keys in (
        {"type": "sliding", "slide_s": 86_400, "allowed_lateness_s": 5},
        {"type": "session", "range_s": None, "gap_s": 5},
        {"type": "global", "range_s": None, "time_key": None},
        {"aggregation": "count", "key": None},
        {"aggregation": "bank.sums:Median", "key": None},
    ):
        assert complaints(broken("windows", 0, **keys)) == [], keys


def test_names_of_windows_are_unique() -> None:
    data = clearing_data()
    data["windows"] *= 2
    assert complaints(data) == ["window 'daily': is there 2 times"]


TRIGGERS: list[tuple[Data, str]] = [
    ({"window": "dayly"}, "there is no window 'dayly'; did you mean 'daily'?"),
    ({"threshold": 0}, "threshold=0.0 must be a finite number above 0"),
    ({"threshold": 2.5}, "threshold=2.5 must be a whole number of segments"),
    ({"on": "timer", "threshold": float("inf")}, "threshold=inf must be a finite number above 0"),
    ({"on": "watermark", "threshold": -1}, "threshold=-1.0 must be a finite number, 0 or more"),
    ({"on": "drained"}, "threshold means nothing for 'drained'"),
    ({"on": "punctuation"}, "'punctuation' needs a predicate"),
    ({"predicate": "a:b"}, "predicate is for 'punctuation' only"),
]


def test_triggers() -> None:
    for keys, complaint in TRIGGERS:
        data = broken("triggers", 0, **keys)
        window = data["triggers"][0]["window"]
        assert f"trigger 1 (of window {window!r}): {complaint}" in complaints(data), (
            keys,
            complaint,
        )


def test_triggers_of_every_type() -> None:
    for keys in (
        {"on": "timer", "threshold": 0.5},
        {"on": "watermark", "threshold": 0},
        {"on": "drained", "threshold": None},
        {"on": "punctuation", "threshold": None, "predicate": "a:b"},
        {"refinement": "discarding", "emit": "a:b"},
    ):
        assert complaints(broken("triggers", 0, **keys)) == [], keys


def test_a_watermark_never_passes_a_global_window() -> None:
    data = broken("windows", 0, type="global", range_s=None, time_key=None)
    data["triggers"][0]["on"] = "watermark"
    assert complaints(data) == [
        "trigger 1 (of window 'daily'): a global window has no end that a watermark could pass"
    ]


def test_lifecycles() -> None:
    assert complaints(broken("lifecycles", 0, task="parsex")) == [
        "lifecycle 1 (of 'parsex'): task 'parsex' is not in the catalog; did you mean 'parse'?"
    ]
