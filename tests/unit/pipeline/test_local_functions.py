"""What functions of every kind do in the local runner, which runs them beside its event loop."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from postroad.core.errors import MissingExtraError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, JobBuilder, LocalRunner, MemoryInput, MemoryOutput, Segment
from postroad.pipeline import local_runner as local_runner_module
from postroad.pipeline.connectors import OutputWriter
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.pipeline.desk_jobs import JOB, dead_in


def job_of(fn: Any, **keys: Any) -> Job:
    builder = JobBuilder(JOB).input("in", connector="memory", retry={"attempts": 1})
    return builder.function("work", fn, **keys).output("out", connector="memory").build()


async def run(job: Job, count: int = 20) -> tuple[list[Any], MemoryDisk]:
    output, disk = MemoryOutput(), MemoryDisk()
    inputs = {"in": MemoryInput([{"n": n} for n in range(count)])}
    runner = LocalRunner(job, inputs, {"out": output}, MemoryStore(disk))
    async with asyncio.timeout(DEADLINE_S):
        await runner.run()
    return sorted(it["n"] for it in output.segments), disk


async def test_functions_run_in_one_thread_beside_the_loop() -> None:
    threads: set[int] = set()

    class Hooks:
        def before_task(self) -> dict[str, Any]:
            # Sqlite refuses a connection of another thread.
            return {"database": sqlite3.connect(":memory:")}

        def after_task(self) -> None:
            threads.add(threading.get_ident())

    def work(segment: Segment, database: sqlite3.Connection) -> Segment:
        threads.add(threading.get_ident())
        (row,) = database.execute("SELECT ? + 100", (segment["n"],)).fetchall()
        return {"n": row[0]}

    job = (
        JobBuilder(JOB)
        .input("in", connector="memory")
        .function("work", work)
        .output("out", connector="memory")
        .lifecycle("work", Hooks)
        .build()
    )
    numbers, _ = await run(job)
    assert numbers == [n + 100 for n in range(20)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_the_loop_goes_on_while_a_function_works() -> None:
    started, go_on = threading.Event(), threading.Event()

    def work(segment: Segment) -> Segment:
        started.set()
        assert go_on.wait(DEADLINE_S)
        return segment

    running = asyncio.create_task(run(job_of(work), 1))
    await eventually(started.is_set)
    go_on.set()
    assert (await running)[0] == [0]


def loop_for_ever() -> None:
    for _ in itertools.count():
        pass


def sleep_for_ever() -> None:
    # In a thread no signal and no exception reaches it.
    time.sleep(3600)


@pytest.mark.parametrize("hang", [loop_for_ever, sleep_for_ever])
@pytest.mark.parametrize("group_by", [None, "n"])
async def test_a_function_that_hangs_fails_its_segment_only(hang: Any, group_by: Any) -> None:
    def work(segment: Segment) -> Segment:
        if segment["n"] == 7:
            hang()
        return segment

    keys = {} if group_by is None else {"group_by": group_by}
    numbers, disk = await run(job_of(work, time_limit_s=0.05, **keys))
    assert numbers == [n for n in range(20) if n != 7]
    (dead,) = await dead_in(disk)
    assert dead.history[-1].task == "work"
    assert "FunctionTimeoutError: task 'work' took more than 0.05 s" in dead.history[-1].error


async def test_a_runner_whose_function_hangs_can_be_cancelled() -> None:
    started = threading.Event()

    def work(segment: Segment) -> None:
        started.set()
        time.sleep(3600)

    running = asyncio.create_task(run(job_of(work), 1))
    await eventually(started.is_set)
    running.cancel()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_functions_are_awaited_many_at_a_time() -> None:
    running, most = 0, 0

    async def work(segment: Segment) -> Segment:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        if segment["n"] == 7:
            raise ValueError("seven")
        return segment

    numbers, disk = await run(job_of(work, concurrency=5))
    assert numbers == [n for n in range(20) if n != 7]
    assert most == 5
    (dead,) = await dead_in(disk)
    assert dead.history[-1].error == "ValueError: seven"


async def test_lambdas_run() -> None:
    factor = 3
    numbers, _ = await run(job_of(lambda segment: {"n": segment["n"] * factor}))
    assert numbers == [n * 3 for n in range(20)]


class Failing(MemoryOutput):
    """An output that cannot be written to, some times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times
        self.stages: list[str] = []

    def create_writer(self, stage: str) -> OutputWriter:
        self.stages.append(stage)
        writer = super().create_writer(stage)
        write = writer.write

        def fail(ids: Sequence[int], segments: Sequence[Segment]) -> None:
            write(ids, segments)
            self.left -= 1
            if self.left >= 0:
                raise OSError("no room")

        writer.write = fail  # type: ignore[method-assign]  # for this one
        return writer


async def test_an_output_that_fails_is_written_again_without_calling_functions_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_runner_module, "_PAUSE_FIRST_S", 0.001)
    calls: list[int] = []

    def work(segment: Segment) -> Segment:
        calls.append(segment["n"])
        return segment

    output = Failing(3)
    inputs = {"in": MemoryInput([{"n": n} for n in range(5)])}
    await LocalRunner(job_of(work), inputs, {"out": output}).run()
    assert sorted(it["n"] for it in output.segments) == sorted(calls) == list(range(5))
    assert len(set(output.stages)) == len(output.stages) == 4


def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_runner_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="running a job needs the extra 'pipeline'"):
        LocalRunner(job_of(len), {}, {})


def test_the_package_is_imported_without_numpy() -> None:
    program = "import sys; sys.modules['numpy'] = None; import postroad.pipeline"
    subprocess.run([sys.executable, "-c", program], check=True)
