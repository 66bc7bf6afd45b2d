"""A segment that cannot be dealt with is a dead letter, and harms no other and not the job."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import (
    FlowCondition,
    Job,
    JsonLinesInput,
    JsonLinesOutput,
    LocalRunner,
    MemoryInput,
    Segment,
    Task,
    TaskType,
)
from postroad.pipeline.functions import Function
from tests.support.deadlines import DEADLINE_S
from tests.support.pipeline.desk_jobs import JOB, Appended, count_to, dead_in, input_task, numbers


def job_of(*functions: str, output: str | None = None) -> Job:
    """A job that is a row of functions."""
    names = ["in", *functions, "out"]
    tasks = [
        input_task(),
        *(Task(name=name, type=TaskType.FUNCTION, fn=name) for name in functions),
        Task(name="out", type=TaskType.OUTPUT, connector="memory", fn=output),
    ]
    return Job(name=JOB, workflow=list(pairwise(names)), catalog=tasks)


async def dead_after(runner: LocalRunner, disk: MemoryDisk) -> int:
    """Run a job to its end; how many dead letters there are."""
    async with asyncio.timeout(DEADLINE_S):
        await runner.run()
    return len(await dead_in(disk))


async def run_seq(job: Job, source: MemoryInput, **functions: Function) -> tuple[Appended, int]:
    output, disk = Appended(), MemoryDisk()
    runner = LocalRunner(
        job, {"in": source}, {"out": output}, MemoryStore(disk), find=functions.__getitem__
    )
    return output, await dead_after(runner, disk)


async def run_lines(
    path: Path, *lines: bytes, function: Function = lambda segment: segment
) -> tuple[list[bytes], int]:
    """What lines come to in files, and how many dead letters."""
    disk = MemoryDisk()
    (path / "in.jsonl").write_bytes(b"\n".join(lines))
    runner = LocalRunner(
        job_of("f"),
        {"in": JsonLinesInput(str(path / "in.jsonl"), settle_s=0)},
        {"out": JsonLinesOutput(str(path / "out"))},
        MemoryStore(disk),
        find={"f": function}.__getitem__,
    )
    dead = await dead_after(runner, disk)
    files = sorted((path / "out").glob("*.jsonl"))
    return sorted(line for file in files for line in file.read_bytes().splitlines()), dead


@pytest.mark.parametrize("error", [KeyError("n"), RecursionError("deep"), MemoryError("big")])
async def test_whatever_a_function_raises(error: Exception) -> None:
    def refuse_two(segment: Segment) -> Segment:
        if segment["n"] == 2:
            raise error
        return segment

    output, dead = await run_seq(job_of("f"), count_to(5), f=refuse_two)
    assert (numbers(output), dead) == ([0, 1, 3, 4], 1)


@pytest.mark.parametrize(
    "line",
    [
        b"\0",
        b'{"n":"\\ud800"}',
        b'{"n":"\xff"}',
        b'{"n":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ],
    ids=["no JSON", "half a character", "no UTF-8", "too deep"],
)
async def test_a_line_that_is_no_segment(tmp_path: Path, line: bytes) -> None:
    assert await run_lines(tmp_path, b'{"n":1}', line, b'{"n":2}') == ([b'{"n":1}', b'{"n":2}'], 1)


async def test_a_number_that_no_database_has(tmp_path: Path) -> None:
    numbers = [b'{"n":%d}' % 10**30, b'{"n":1}']
    assert await run_lines(tmp_path, *numbers) == (numbers, 0)

    def refuse(segment: Segment) -> Segment:
        raise ValueError("no")

    # It cannot come again, so it is dead at once.
    (tmp_path / "again").mkdir()
    assert await run_lines(tmp_path / "again", numbers[0], function=refuse) == ([], 1)


async def test_something_that_an_output_cannot_write(tmp_path: Path) -> None:
    def spoil_two(segment: Segment) -> Segment:
        return {"n": object()} if segment["n"] == 2 else segment

    found = await run_lines(tmp_path, b'{"n":1}', b'{"n":2}', function=spoil_two)
    assert found == ([b'{"n":1}'], 1)


async def test_the_same_segment_twice_is_two_segments() -> None:
    def change(segment: Segment) -> Segment:
        segment["n"] += 1
        return segment

    source = count_to(1)
    functions = {"twice": lambda segment: [segment, segment], "change": change}
    output, _ = await run_seq(job_of("twice", "change"), source, **functions)
    assert numbers(output) == [1, 1]


async def test_what_an_output_drops_for_its_exception_is_not_written() -> None:
    def refuse_two(segment: Segment) -> Segment:
        if segment["n"] == 2:
            raise ValueError("two")
        return segment

    condition = FlowCondition(source="all", to="none", exceptions=True, short_circuit=True)
    job = job_of(output="f")
    job = Job(name=JOB, workflow=job.workflow, catalog=job.catalog, flow_conditions=[condition])
    output, dead = await run_seq(job, count_to(5), f=refuse_two)
    assert (numbers(output), dead) == ([0, 1, 3, 4], 0)


async def test_a_segment_that_is_always_the_same_object_is_written_once() -> None:
    always = {"n": 1}

    def give(segment: Segment) -> Segment:
        return always

    def refuse(segment: Segment) -> Segment:
        raise ValueError("no")

    job = job_of("give")
    tasks = [Task(name=name, type=TaskType.FUNCTION, fn=name[:-1]) for name in ("give2", "refuse2")]
    edges = [*job.workflow, ("in", "give2"), ("give2", "refuse2"), ("refuse2", "out")]
    job = Job(name=JOB, workflow=edges, catalog=[*job.catalog, *tasks])
    output, dead = await run_seq(job, count_to(1), give=give, refuse=refuse)
    assert (numbers(output), dead) == ([1], 1)


async def test_an_exception_that_cannot_be_written_down(tmp_path: Path) -> None:
    assert await run_lines(tmp_path, b'{"n":1}', b'{"n":2}', function=raise_half) == (
        [b'{"n":1}'],
        1,
    )


def raise_half(segment: Segment) -> Segment:
    if segment["n"] == 2:
        raise ValueError("half a character: \udcff")
    return segment
