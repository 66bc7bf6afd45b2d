"""Hooks of tasks: what is done before and after their work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline import (
    Job,
    LocalRunner,
    MemoryInput,
    MemoryOutput,
    Segment,
    Task,
    TaskKind,
    TaskLifecycle,
    TaskType,
)

CALLS: list[str] = []


class Connection:
    """Opens something for its task."""

    def before_task(self, place: str) -> dict[str, object]:
        CALLS.append(f"open {place}")
        return {"connection": place}

    def before_batch(self) -> None:
        CALLS.append("begin")

    def after_batch(self) -> None:
        CALLS.append("commit")

    def after_task(self) -> None:
        CALLS.append("close")


class Nothing:
    """Has no hook at all."""


class Loud:
    def after_task(self) -> None:
        CALLS.append("all over")


def use(segment: Segment, connection: str) -> Segment:
    if segment["n"] < 0:
        raise SystemExit("the process ends")
    return {**segment, "by": connection}


NAMES: dict[str, Callable[..., Any]] = {
    "use": use,
    "Connection": Connection,
    "Nothing": Nothing,
    "Loud": Loud,
}


def runner_of(numbers: list[int], calls: str = "Connection", **keys: object) -> LocalRunner:
    job = Job(
        name="job",
        workflow=[("in", "use"), ("use", "out")],
        catalog=[
            Task(name="in", type=TaskType.INPUT, connector="memory", batch_size=2),
            Task(name="use", type=TaskType.FUNCTION, fn="use", **keys),  # type: ignore[arg-type]
            Task(name="out", type=TaskType.OUTPUT, connector="memory"),
        ],
        lifecycles=[
            TaskLifecycle(task="use", hooks=calls, params={"place": "here"}),
            TaskLifecycle(task="all", hooks="Loud"),
        ],
    )
    return LocalRunner(
        job, {"in": MemoryInput({"n": n} for n in numbers)}, {"out": OUT}, find=NAMES.__getitem__
    )


OUT = MemoryOutput()


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


async def test_hooks_are_called_around_the_work_and_give_arguments() -> None:
    await runner_of([1, 2, 3]).run()
    assert [
        "open here",
        *("begin", "commit"),
        *("begin", "commit"),
        "close",
        *("all over", "all over", "all over"),
    ] == CALLS
    assert {segment["by"] for segment in OUT.segments} == {"here"}


async def test_the_end_is_told_of_also_after_a_failure() -> None:
    with pytest.raises(SystemExit):
        await runner_of([-1]).run()
    assert CALLS[:2] == ["open here", "begin"]
    assert CALLS[2] == "close"


def test_a_class_without_hooks_is_refused() -> None:
    with pytest.raises(ConfigError, match="'Nothing' has no hooks; define one of before_task"):
        runner_of([], "Nothing")


def test_what_needs_spark_is_refused() -> None:
    with pytest.raises(ConfigError, match="task 'use' is of kind sql, which needs Spark"):
        runner_of([], kind=TaskKind.SQL)
