"""Functions that do not end: only the segment they hang at fails."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from postroad.pipeline import FlowCondition, Job, Segment, Task, TaskKind, TaskType
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.functions import Function
from postroad.pipeline.task_functions import ArrowFunction, map_function
from postroad.pipeline.time_limits import FunctionTimeoutError, TimeLimit
from postroad.pipeline.vectorized.isolation import call_isolated
from postroad.pipeline.vectorized.task_calls import call_function, run_task

LIMIT_S = 0.02
LIMIT = TimeLimit("parse", LIMIT_S)
CULPRITS = (0, 7, 19)


def loop_for_ever() -> None:
    for _ in itertools.count():
        time.sleep(0)


def sleep_for_ever() -> None:
    time.sleep(3600)


def wait_for_ever() -> None:
    threading.Event().wait()


def swallow_everything() -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def swallow_even_that() -> None:
    try:
        loop_for_ever()
    except BaseException:
        loop_for_ever()


def hang_in_c() -> None:
    # Never comes back to where a handler of signals could run.
    max(itertools.repeat(1))


def hang_at_some(hang: Function) -> Function:
    def parse(segment: Segment) -> Segment:
        if segment["n"] in CULPRITS:
            hang()
        return {"n": segment["n"] + 100}

    return parse


def segments() -> list[Segment]:
    return [{"n": n} for n in range(20)]


def check(results: list[Any], raised: dict[int, Exception]) -> None:
    assert sorted(raised) == list(CULPRITS)
    for error in raised.values():
        assert isinstance(error, FunctionTimeoutError)
        assert str(error) == "task 'parse' took more than 0.02 s for it"
    assert [it["n"] for it in results if it] == [n + 100 for n in range(20) if n not in CULPRITS]


@pytest.mark.parametrize(
    "hang", [loop_for_ever, sleep_for_ever, wait_for_ever, swallow_everything, swallow_even_that]
)
def test_map_function_when_calls_hang_fails_only_those(hang: Function) -> None:
    check(*map_function(hang_at_some(hang), segments(), LIMIT))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("hang", [loop_for_ever, sleep_for_ever, hang_in_c])
def test_isolation_when_calls_hang_kills_and_fails_only_those(hang: Function) -> None:
    check(*call_isolated(hang_at_some(hang), segments(), LIMIT))


def test_arrow_function_when_rows_hang_fails_only_those() -> None:
    def parse(batch: Any) -> Any:
        if set(batch["n"].to_pylist()) & set(CULPRITS):
            sleep_for_ever()
        return pa.RecordBatch.from_pydict({"n": [n + 100 for n in batch["n"].to_pylist()]})

    check(*call_function(ArrowFunction(parse), segments(), LIMIT))
    check(*call_isolated(ArrowFunction(parse), segments(), LIMIT))


def test_map_function_when_all_together_take_longer_lets_each_have_its_time() -> None:
    def work(n: int) -> int:
        time.sleep(0.005)
        return n

    limit = TimeLimit("parse", 0.2)
    results, raised = map_function(work, list(range(80)), limit)
    assert (results, raised) == (list(range(80)), {})


def test_map_function_when_a_call_ends_at_the_last_moment_harms_nobody_afterwards() -> None:
    limit = TimeLimit("parse", 0.001)
    for number in range(60):
        durations = [0.0008 + number * 0.00001, 0.0]
        results, raised = map_function(time.sleep, durations, limit)
        assert len(results) == 2
        assert 1 not in raised
        # A late alarm must not arrive out here.
        for _ in range(50):
            time.sleep(0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_map_function_keeps_the_handler_of_others() -> None:
    def handler(*_: object) -> None:
        return

    before = signal.signal(signal.SIGALRM, handler)
    try:
        map_function(hang_at_some(sleep_for_ever), segments(), LIMIT)
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


def program_of(
    function: Function, conditions: tuple[FlowCondition, ...] = (), **keys: Any
) -> CompiledJob:
    catalog = [
        Task(name="in", type=TaskType.INPUT, connector="memory", pending_timeout_s=LIMIT_S),
        Task(name="slow", type=TaskType.INPUT, connector="memory", pending_timeout_s=5.0),
        Task(name="parse", type=TaskType.FUNCTION, fn="f", **keys),
        Task(name="both", type=TaskType.FUNCTION, fn="f"),
        Task(name="out", type=TaskType.OUTPUT, connector="memory"),
    ]
    edges = [("in", "parse"), ("parse", "both"), ("slow", "both"), ("both", "out")]
    job = Job(name="job", workflow=edges, catalog=catalog, flow_conditions=list(conditions))
    return CompiledJob(job, {"f": function, "hang": lambda new, old: loop_for_ever()}.__getitem__)


def test_task_without_a_limit_has_that_of_its_input() -> None:
    limits = program_of(hang_at_some(loop_for_ever)).time_limits
    assert {name: it.seconds for name, it in limits.items()} == {
        "in": LIMIT_S,
        "slow": 5.0,
        "parse": LIMIT_S,
        "both": 5.0,
        "out": 5.0,
    }
    assert program_of(len, time_limit_s=3.0).time_limits["parse"].seconds == 3.0


@pytest.mark.parametrize("is_isolated", [False, True])
def test_run_task_when_some_hang_fails_only_those(is_isolated: bool) -> None:
    program = program_of(hang_at_some(sleep_for_ever))
    program.isolate_functions = is_isolated
    made = run_task(program, "parse", segments())
    assert sorted(made.failed) == list(CULPRITS)
    assert len(made.segments) == 17


def test_run_task_when_a_predicate_hangs_fails_the_segment() -> None:
    program = program_of(
        lambda segment: segment, (FlowCondition(source="parse", to="both", predicate="hang"),)
    )
    made = run_task(program, "parse", segments()[:2])
    assert sorted(made.failed) == [0, 1]
    assert isinstance(made.failed[0], FunctionTimeoutError)


def test_run_task_in_another_thread_when_some_hang_isolates_them() -> None:
    program = program_of(hang_at_some(sleep_for_ever))
    failed: list[int] = []

    def work() -> None:
        failed.extend(run_task(program, "parse", segments()).failed)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert sorted(failed) == list(CULPRITS)


PROFILED = """
import asyncio, ctypes, sys, threading
from postroad.pipeline.function_thread import FunctionThread, StuckFunctionError
from postroad.pipeline.task_functions import map_function
from postroad.pipeline.time_limits import TimeLimit

def hang_at_three(number):
    while number == 3:
        pass
    return number

def hang_in_c(number):
    ctypes.CDLL(None).pause()

async def main():
    thread = FunctionThread(0.01)
    call = lambda: map_function(hang_at_three, range(5), TimeLimit("parse", 0.05))
    results, raised = await thread.run(call)
    assert results == [0, 1, 2, None, 4] and list(raised) == [3], results
    assert (await thread.run(call))[0] == results
    stuck = FunctionThread(0.01)
    try:
        await stuck.run(lambda: map_function(hang_in_c, range(5), TimeLimit("parse", 0.05)))
    except StuckFunctionError:
        pass
    stuck = FunctionThread(0.01)
    is_called = threading.Event()
    stopped = asyncio.create_task(stuck.run(lambda: (is_called.set(), hang_in_c(0))))
    await asyncio.to_thread(is_called.wait)
    stopped.cancel()
    await asyncio.wait([stopped])
    sys.setprofile(lambda *details: None)
    assert hang_at_three(1) == 1
    sys.setprofile(None)

asyncio.run(main())
"""


async def test_process_whose_calls_were_interrupted_can_be_profiled() -> None:
    # In a process of its own: what hangs is the interpreter.
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROFILED)
    try:
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_arrow_task_with_a_limit_is_called_with_whole_batches() -> None:
    sizes: list[int] = []

    def parse(batch: Any) -> Any:
        sizes.append(batch.num_rows)
        return batch

    run_task(program_of(parse, kind=TaskKind.ARROW, time_limit_s=5.0), "parse", segments())
    assert sizes == [20]
