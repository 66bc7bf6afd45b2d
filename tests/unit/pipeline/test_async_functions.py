"""Functions that are awaited: many at a time, each with its own time and its own errors."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from postroad.pipeline import Segment
from postroad.pipeline.functions import Function
from postroad.pipeline.task_functions import AsyncFunction, FunctionLoop, is_async
from postroad.pipeline.time_limits import FunctionTimeoutError, TimeLimit
from postroad.pipeline.vectorized.isolation import WorkerCrashedError, call_isolated
from tests.support.pipeline.small_jobs import program_of

LIMIT = TimeLimit("ask", 0.05)
SEGMENTS: list[Segment] = [{"n": n} for n in range(20)]


@contextmanager
def loop_of_functions() -> Iterator[FunctionLoop]:
    loop = FunctionLoop()
    try:
        yield loop
    finally:
        loop.close()


def call(function: Function, limit: TimeLimit | None = None, concurrency: int = 4) -> Any:
    with loop_of_functions() as loop:
        return AsyncFunction(function, concurrency, loop).call_batch(SEGMENTS, limit)


def isolate(function: Function, limit: TimeLimit | None = None, concurrency: int = 4) -> Any:
    with loop_of_functions() as loop:
        return call_isolated(AsyncFunction(function, concurrency, loop), SEGMENTS, limit)


both = pytest.mark.parametrize("run", [call, isolate])


@both
def test_results_are_in_order_and_errors_are_by_segment(run: Function) -> None:
    async def ask(segment: Segment) -> Segment:
        # The later ones end first.
        await asyncio.sleep((20 - segment["n"]) / 5000)
        if segment["n"] % 7 == 3:
            raise ValueError(segment["n"])
        return {"n": segment["n"] + 100}

    results, raised = run(ask, LIMIT)
    assert {at: repr(error) for at, error in raised.items()} == {
        3: "ValueError(3)",
        10: "ValueError(10)",
        17: "ValueError(17)",
    }
    assert [it["n"] for it in results if it] == [n + 100 for n in range(20) if n % 7 != 3]


def test_so_many_run_at_a_time_and_no_more() -> None:
    running, most = 0, 0

    async def ask(segment: Segment) -> Segment:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return segment

    call(ask, concurrency=3)
    assert most == 3


async def never_end() -> None:
    await asyncio.Event().wait()


async def block_the_loop() -> None:
    time.sleep(3600)  # noqa: ASYNC251 - that is what it must not do


async def refuse_to_be_cancelled() -> None:
    for _ in itertools.count():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


@both
@pytest.mark.parametrize("hang", [never_end, block_the_loop, refuse_to_be_cancelled])
def test_one_that_does_not_end_fails_alone(run: Function, hang: Function) -> None:
    async def ask(segment: Segment) -> Segment:
        if segment["n"] in (0, 11):
            await hang()
        return segment

    results, raised = run(ask, LIMIT)
    assert sorted(raised) == [0, 11]
    assert isinstance(raised[11], FunctionTimeoutError)
    assert "task 'ask' took more than 0.05 s" in str(raised[11])
    assert [it["n"] for it in results if it] == [n for n in range(20) if n not in (0, 11)]


@both
def test_one_that_cancels_itself_fails_alone(run: Function) -> None:
    async def ask(segment: Segment) -> Segment:
        if segment["n"] == 5:
            raise asyncio.CancelledError
        return segment

    results, raised = run(ask, LIMIT)
    assert list(raised) == [5]
    assert sum(it is not None for it in results) == 19


def test_one_that_ends_its_process_fails_alone() -> None:
    async def ask(segment: Segment) -> Segment:
        await asyncio.sleep(0)
        if segment["n"] == 5:
            os._exit(3)
        return segment

    results, raised = isolate(ask, LIMIT)
    assert list(raised) == [5]
    assert isinstance(raised[5], WorkerCrashedError)
    assert sum(it is not None for it in results) == 19


def test_all_calls_of_a_job_share_a_loop() -> None:
    loops: list[object] = []

    async def ask(segment: Segment) -> Segment:
        loops.append(asyncio.get_running_loop())
        return segment

    program = program_of([("in", "f"), ("f", "g"), ("g", "out")], f=ask, g=ask)
    for name in ("f", "g", "f"):
        function = program.functions[name]
        assert isinstance(function, AsyncFunction)
        assert function({"n": 1}) == {"n": 1}
    program.stop()
    assert len(loops) == 3
    assert len(set(map(id, loops))) == 1


class Asking:
    async def __call__(self, segment: Segment) -> Segment:
        return segment

    async def ask(self, segment: Segment) -> Segment:
        return segment

    def look(self, segment: Segment) -> Segment:
        return segment


def test_what_is_awaited_is_known() -> None:
    awaited: list[Function] = [
        Asking(),
        Asking().ask,
        partial(Asking().ask),
        partial(partial(Asking())),
    ]
    assert [is_async(it) for it in awaited] == [True] * 4
    assert [is_async(it) for it in (Asking().look, partial(Asking().look), len, Asking)] == [
        False
    ] * 4
