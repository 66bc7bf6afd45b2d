"""Commits that a test holds before they reach the disk, to let them go on or fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from postroad.core import fault_points as faults
from postroad.durable.store.mutations import Mutation
from tests.support.deadlines import DEADLINE_S


class HeldCommit:
    """The first commit of certain units stops before the disk, until a test says how it ends."""

    def __init__(self, is_meant: Callable[[Mutation], bool]) -> None:
        self._is_meant = is_meant
        self._error: Exception | None = None
        self._begun = threading.Event()
        self._ended = threading.Event()
        # What is committed together with those units.
        self.units: Sequence[Mutation] = ()

    def __call__(self, units: Sequence[Mutation]) -> None:
        """Be the fault point, in the thread of the store."""
        if self._begun.is_set() or not any(map(self._is_meant, units)):
            return
        self.units = units
        self._begun.set()
        assert self._ended.wait(DEADLINE_S), "nobody let the commit go on"
        if self._error is not None:
            raise self._error

    async def begun(self) -> None:
        """Return when the commit has come as far as it may."""
        assert await asyncio.to_thread(self._begun.wait, DEADLINE_S), "there was no such commit"

    def go_on(self) -> None:
        self._ended.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._ended.set()


@contextmanager
def held_commit(is_meant: Callable[[Mutation], bool] = lambda unit: True) -> Iterator[HeldCommit]:
    """Hold the next commit that has one of those units in it; it goes on at the end at the latest.

    Only one store at a time should have such units: fault points are those of the whole process.
    """
    held = HeldCommit(is_meant)
    with faults.arm_fault_point("durable.commit.before", held):
        try:
            yield held
        finally:
            held.go_on()
