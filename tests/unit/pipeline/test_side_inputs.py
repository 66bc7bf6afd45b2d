"""Tables that functions are given besides their segments."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from postroad.core.errors import ConfigError, InvalidJobError
from postroad.pipeline import Job, JobBuilder, LocalRunner, MemoryInput, MemoryOutput, Segment
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.explain import explain_text
from postroad.pipeline.vectorized.task_calls import run_task


def convert(segment: Segment, rates: Any, by: int = 1) -> Segment:
    return {"euros": segment["amount"] * rates[segment["currency"]]["rate"] * by}


async def convert_later(segment: Segment, rates: Any) -> Segment:
    await asyncio.sleep(0)
    return convert(segment, rates)


def count(segment: Segment, rates: Any) -> Segment:
    return {"kind": type(rates).__name__, "rows": len(rates)}


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    path = tmp_path / "rates.jsonl"
    write(path, USD=2, GBP=3)
    return path


def write(path: Path, **rates: int) -> None:
    lines = [json.dumps({"currency": name, "rate": rate}) for name, rate in rates.items()]
    path.write_text("".join(f"{line}\n" for line in lines))


def job_of(fn: Any, path: Path, side: dict[str, Any] | None = None, **keys: Any) -> Job:
    table = {"connector": "jsonl", "options": {"path": str(path)}, "key": "currency"}
    return (
        JobBuilder("rates")
        .input("in", connector="memory")
        .function("convert", fn, side_inputs={"rates": {**table, **(side or {})}}, **keys)
        .output("out", connector="memory")
        .build()
    )


PAYMENTS = [{"amount": 10, "currency": "USD"}, {"amount": 10, "currency": "GBP"}]


@pytest.mark.parametrize("fn", [convert, convert_later, lambda it, rates: convert(it, rates)])
async def test_the_local_runner_gives_them_to_every_function(fn: Any, rates: Path) -> None:
    output = MemoryOutput()
    await LocalRunner(job_of(fn, rates), {"in": MemoryInput(PAYMENTS)}, {"out": output}).run()
    assert output.segments == [{"euros": 20}, {"euros": 30}]


def test_a_pass_gives_them_beside_parameters_also_in_other_processes(rates: Path) -> None:
    program = CompiledJob(job_of(convert, rates, params={"by": 5}))
    program.start()
    for program.isolate_functions in (False, True):
        made = run_task(program, "convert", [dict(it) for it in PAYMENTS])
        assert made.segments == [{"euros": 100}, {"euros": 150}]
    program.stop()


def test_without_a_key_it_is_a_list(rates: Path) -> None:
    program = CompiledJob(job_of(count, rates, {"key": None}))
    program.start()
    assert run_task(program, "convert", [{}]).segments == [{"kind": "list", "rows": 2}]
    program.stop()


def test_they_are_read_again_when_they_are_too_old(
    rates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    # Not the clock of everybody: reading waits by that.
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("postroad.pipeline.side_inputs.time", clock)
    program = CompiledJob(job_of(convert, rates, {"refresh_s": 60}))
    program.start()

    def euros() -> Any:
        program.before_batch()
        return program.functions["convert"](dict(PAYMENTS[0]))["euros"]  # type: ignore[misc]

    assert euros() == 20
    write(rates, USD=7)
    assert euros() == 20, "it is not old enough"
    now_s = 161.0
    assert euros() == 70
    rates.write_text("nonsense\n")
    now_s = 222.0
    assert euros() == 70, "what cannot be read stays as it was"
    program.stop()


def test_without_refresh_they_are_read_once(rates: Path) -> None:
    program = CompiledJob(job_of(convert, rates))
    program.start()
    rates.unlink()
    program.before_batch()
    assert run_task(program, "convert", [dict(PAYMENTS[0])]).segments == [{"euros": 20}]
    program.stop()


def test_one_that_has_no_connector_is_refused(rates: Path) -> None:
    program = CompiledJob(job_of(convert, rates, {"connector": "jsonlines"}))
    with pytest.raises(ConfigError, match=r"'convert\.rates' has an unknown connector"):
        program.start()
    program.stop()


def test_they_are_drawn(rates: Path) -> None:
    assert "with rates from jsonl" in explain_text(job_of(convert, rates))


@pytest.mark.parametrize(
    ("side", "keys", "complaint"),
    [
        ({"connector": ""}, {}, "side_inputs.rates.connector must not be empty"),
        ({"key": ""}, {}, "side_inputs.rates.key must not be empty"),
        ({"refresh_s": 0}, {}, "side_inputs.rates.refresh_s=0.0 must be a finite number above 0"),
        ({"options": {"path": Path()}}, {}, "side_inputs.rates.options.path=.* is not plain data"),
        ({}, {"params": {"rates": 1}}, "'rates' is a side input and among params"),
        ({"kconnector": "jsonl"}, {}, "unknown field"),
    ],
)
def test_mistakes_are_told(
    side: dict[str, Any], keys: dict[str, Any], complaint: str, rates: Path
) -> None:
    with pytest.raises(InvalidJobError, match=complaint):
        job_of(convert, rates, side, **keys)
