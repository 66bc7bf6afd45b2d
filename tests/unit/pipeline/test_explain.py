"""Drawings of jobs: everything is in them, and they are the same every time."""

import re
from typing import Any

from postroad.pipeline.builder import new_job
from postroad.pipeline.explain import explain_mermaid, explain_text
from postroad.pipeline.job_files import job_from_data
from tests.support.pipeline.jobs import clearing_data

CLEARING = """\
job clearing: 5 tasks in 1 stage
  Totals of payments.
  every task: hooks: bank.hooks:Log

stage 0
  in: input from memory
    └─> parse
  parse: function, bank.parsing:parse
      when bank.rules:is_noise: dropped
      when (bank.rules:is_big and not bank.rules:is_old): to total, without secret
      when it raised: to errors, as bank.rules:describe makes it, and nothing else is looked at
    ├─> total
    └─> errors
  total: function, bank.sums:total, grouped by account and currency
      window daily: fixed of 86400 s timed by at, sum of amount
        emitted after every 10 segments, accumulating
    └─> out
  out: output to mail
  errors: output to memory
"""

CLEARING_CHART = """\
flowchart LR
    subgraph stage0["stage 0"]
        t0(["in<br/>input from memory"])
        t1["parse<br/>function<br/>bank.parsing:parse"]
        t2["total<br/>function<br/>bank.sums:total<br/>grouped by account and currency<br/>\
window daily: fixed of 86400 s timed by at, sum of amount"]
        t3[("out<br/>output to mail")]
        t4[("errors<br/>output to memory")]
    end
    t0 --> t1
    t1 -->|"when (bank.rules:is_big and not bank.rules:is_old)"| t2
    t1 -.->|"when it raised"| t4
    t1 -.->|"when bank.rules:is_noise"| t1end0(("dropped"))
    t2 --> t3
"""


def test_a_job_as_text() -> None:
    assert explain_text(job_from_data(clearing_data())) == CLEARING


def test_a_job_as_a_chart() -> None:
    assert explain_mermaid(job_from_data(clearing_data())) == CLEARING_CHART


def test_groups_without_windows_are_shuffled() -> None:
    job = job_from_data(clearing_data() | {"windows": [], "triggers": []})
    text, chart = explain_text(job), explain_mermaid(job)
    assert "== shuffle: total by account and currency ===" in text
    assert "├─> total (shuffle by account and currency)\n" in text
    assert '<br/>shuffle by account and currency"| t2\n' in chart


CONDITIONS: list[tuple[dict[str, Any], str]] = [
    ({"to": "all", "short_circuit": True}, "always: to all, and nothing else is looked at"),
    ({"to": ["total", "errors"]}, "always: to total, errors"),
    (
        {"to": "none", "short_circuit": True, "action": "retry", "predicate": "a:b"},
        "when a:b: again from the input",
    ),
    ({"to": "errors", "predicate": {"or": ["a:b", "c:d"]}}, "when (a:b or c:d): to errors"),
    (
        {"to": "none", "short_circuit": True, "exceptions": True, "predicate": "a:b"},
        "when it raised and a:b: dropped",
    ),
]


def test_conditions() -> None:
    for keys, words in CONDITIONS:
        data = {**clearing_data(), "flow_conditions": [{"from": "parse", **keys}]}
        assert f"\n      {words}\n" in explain_text(job_from_data(data)), (keys, words)


WINDOWS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "type": "sliding",
            "time_key": "at",
            "range_s": 60,
            "slide_s": 0.5,
            "allowed_lateness_s": 5,
        },
        "sliding of 60 s every 500 ms timed by at, count, kept for 5 s",
    ),
    (
        {"type": "session", "time_key": "at", "gap_s": 30},
        "session until silent for 30 s timed by at, count",
    ),
    ({"type": "global"}, "global, count"),
]


def test_windows() -> None:
    for keys, words in WINDOWS:
        window = {"name": "w", "task": "parse", "aggregation": "count", **keys}
        job = job_from_data({**clearing_data(), "windows": [window], "triggers": []})
        assert f"\n      window w: {words}\n" in explain_text(job), (keys, words)
        assert f"<br/>window w: {words}" in explain_mermaid(job), (keys, words)


TRIGGERS: list[tuple[dict[str, Any], str]] = [
    ({"on": "timer", "threshold": 5}, "every 5 s, accumulating"),
    ({"on": "punctuation", "predicate": "a:b"}, "when a:b, accumulating"),
    ({"on": "watermark", "threshold": 0}, "when a segment is later than its end, accumulating"),
    ({"on": "watermark", "threshold": 2}, "when a segment is 2 s later than its end, accumulating"),
    (
        {"on": "drained", "refinement": "discarding", "emit": "a:b"},
        "when everything was seen through a:b, discarding",
    ),
]


def test_triggers() -> None:
    for keys, words in TRIGGERS:
        job = job_from_data({**clearing_data(), "triggers": [{"window": "daily", **keys}]})
        assert f"\n        emitted {words}\n" in explain_text(job), (keys, words)


def test_kinds_of_functions() -> None:
    job = (
        new_job("kinds")
        .input("in", "bank.parsing:read", connector="memory")
        .function("fast", "bank.parsing:parse", kind="arrow")
        .function(
            "columns",
            kind="sql",
            columns={"a": "int", "b": "int"},
            expressions={"sum": "a\n  + b", "big": "a > 3"},
        )
        .output("out", connector="memory", group_by="account")
        .build()
    )
    text = explain_text(job)
    assert "  in: input from memory, bank.parsing:read\n" in text
    assert "  fast: function, bank.parsing:parse, in Arrow batches\n" in text
    assert "\n== Spark SQL: columns ====" in text
    assert "====\nstage 1\n  columns: function, sum = a + b, big = a > 3\n" in text
    assert "  out: output to memory, grouped by account\n" in text


def test_a_small_job() -> None:
    job = new_job("copy").input("in", connector="memory").output("out", connector="memory").build()
    assert explain_text(job).startswith("job copy: 2 tasks in 1 stage\n\nstage 0\n")


def test_a_chart_survives_every_name() -> None:
    nasty = 'a"b] <c> #d `e` & "f'
    job = new_job("nasty").input(nasty, connector=nasty).output("end", connector="x").build()
    (node,) = re.findall(r"t0\(\[\"(.*)\"\]\)", explain_mermaid(job))
    assert not set('"`&') & set(node)
    shown = "a#quot;b] #lt;c#gt; #35;d #96;e#96; #amp; #quot;f"
    assert node == f"{shown}<br/>input from {shown}"


def test_a_condition_of_all_tasks_is_at_the_arrows_it_is_about() -> None:
    caught = {"from": "all", "to": "errors", "exceptions": True, "short_circuit": True}
    data = {**clearing_data(), "flow_conditions": [caught]}
    data["workflow"].append(["total", "errors"])
    chart = explain_mermaid(job_from_data(data))
    assert chart.count('-.->|"when it raised"|') == 2
    assert "  every task: when it raised: to errors" in explain_text(job_from_data(data))
