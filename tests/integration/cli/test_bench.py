"""`postroad bench`: two real processes, a moment each."""

from __future__ import annotations

import json

import pytest

from postroad.cli.main import run


def test_all_ways_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--seconds", "0.05", "--at-once", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(it["name"], it["at_once"]) for it in told["results"]] == [
        (way, number) for way in ("request", "call", "mail") for number in (1, 4)
    ]
    for it in told["results"]:
        assert it["count"] > 0
        assert 0 < it["p50_ms"] <= it["p99_ms"]
    assert told["machine"]["cores"] > 0


def test_one_way_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "request", "--seconds", "0.05", "--size", "10", "--at-once", "1"]) == 0
    heading, line, machine = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "AT", "ONCE", "COUNT", "RATE", "P50", "P99"]
    assert line.split()[0] == "request"
    assert machine.startswith("10 bytes; ")


def test_a_way_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "pigeons"]) == 2
