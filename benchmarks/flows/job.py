"""What a process is told to measure, and the arithmetic that all contenders do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter


@dataclass(frozen=True)
class Job:
    """One measurement of flows per second."""

    loop: str
    scratch: Path
    seconds: float
    warmup_s: float
    at_once: int

    @property
    def timeout_s(self) -> float:
        """When a contender that has said nothing is given up."""
        return 60.0 + self.warmup_s + self.seconds


@contextmanager
def in_own_scratch(job: Job) -> Iterator[Job]:
    """The same job in a directory of its own, which is empty."""
    with TemporaryDirectory(prefix="flows-", dir=job.scratch) as scratch:
        yield replace(job, scratch=Path(scratch))


def add_one(number: int) -> int:
    """First step."""
    return number + 1


def treble(number: int) -> int:
    """Second step."""
    return number * 3


def take_two(number: int) -> int:
    """Third step."""
    return number - 2


def expect(number: int, result: object) -> None:
    """Raise unless the three steps made this of the number."""
    expected = take_two(treble(add_one(number)))
    if result != expected:
        raise ValueError(f"the flow of {number} returned {result!r} instead of {expected}")


async def flows_per_second(job: Job, complete: Callable[[int], Awaitable[None]]) -> float:
    """Complete one flow after the other, so many at once, and count those of the middle."""
    started, completed, is_over = 0, 0, False

    async def work() -> None:
        nonlocal started, completed
        while not is_over:
            started += 1
            await complete(started)
            completed += 1

    async with asyncio.TaskGroup() as workers:
        for _ in range(job.at_once):
            workers.create_task(work())
        await asyncio.sleep(job.warmup_s)
        before, start = completed, perf_counter()
        await asyncio.sleep(job.seconds)
        rate = (completed - before) / (perf_counter() - start)
        is_over = True
    return rate
