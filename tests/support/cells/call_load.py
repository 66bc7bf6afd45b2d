"""Many callers of a queue at once, and their accounts."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any, Self

import pytest

from postroad.cells import CellBusyError, CellDomain, MessageExpiredError, NoRouteError
from postroad.core.errors import MessagingError, ReplyTimeoutError
from tests.support.cells.domain_node import QUEUE
from tests.support.cells.domain_processes import Fabric
from tests.support.deadlines import DEADLINE_S
from tests.support.tiers import by_tier

PATIENT_S = 60.0
"""What a call is given that nothing should disturb, however busy the machine is."""
HASTY_S = 2.0
"""What a call is given that may be lost with a process."""
SLACK_S = 15.0
"""What a busy machine may add to a time-out."""
CALLERS = 40
_ERRORS = (ReplyTimeoutError, NoRouteError, MessageExpiredError, CellBusyError)


class CallLoad:
    """Calls until told to stop; checks that each ends in time, with its own reply or such an error.

    Every call is made once: what `call` itself tries again is all that is tried again.
    """

    def __init__(
        self,
        domain: CellDomain,
        *,
        timeout_s: float,
        pause_s: float = 0.0,
        payload_bytes: int = 0,
        first: int = 1,
    ) -> None:
        self._domain = domain
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._padding = bytes(payload_bytes)
        self._first = self._next = first
        self._should_stop = False
        self._callers: list[asyncio.Task[None]] = []
        self.answered: set[int] = set()
        # The same in the order of the answers.
        self._answers: list[int] = []
        self.by_worker: Counter[str] = Counter()
        self.failed: dict[int, MessagingError] = {}
        self.slowest_s = 0.0

    async def __aenter__(self) -> Self:
        for _ in range(CALLERS):
            self._callers.append(asyncio.create_task(self._call_repeatedly()))
        return self

    async def __aexit__(self, *details: object) -> None:
        """What is left when a test fails ends with it."""
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)

    async def stop(self) -> None:
        """Let every call end; raises what a caller found wrong."""
        self._should_stop = True
        await asyncio.wait_for(
            asyncio.gather(*self._callers), self._timeout_s + SLACK_S + self._pause_s
        )

    async def answers(self, count: int = by_tier(test=100, nightly=300)) -> None:
        """Return when so many calls have been answered that were begun from now on.

        That may take long on a busy machine; it fails when not one more is within DEADLINE_S.
        """
        first, seen, count_answered = self._next, len(self._answers), 0
        now = asyncio.get_running_loop().time
        deadline = now() + DEADLINE_S
        while count_answered < count:
            self._raise_what_failed()
            assert now() < deadline, f"only {count_answered} of {count} calls are answered: {self}"
            await asyncio.sleep(0.02)
            more = sum(number >= first for number in self._answers[seen:])
            seen = len(self._answers)
            if more:
                count_answered, deadline = count_answered + more, now() + DEADLINE_S

    def _raise_what_failed(self) -> None:
        for caller in self._callers:
            if caller.done() and not self._should_stop:
                caller.result()

    @property
    def made(self) -> int:
        """How many calls were begun."""
        return self._next - self._first

    @property
    def errors(self) -> Counter[str]:
        """How often each error came."""
        return Counter(type(error).__name__ for error in self.failed.values())

    async def _call_repeatedly(self) -> None:
        while not self._should_stop:
            self._next += 1
            await self._call(self._next - 1)
            await asyncio.sleep(self._pause_s)

    async def _call(self, number: int) -> None:
        now = asyncio.get_running_loop().time
        started = now()
        try:
            body = [number, self._padding]
            reply: Any = await self._domain.call(QUEUE, body, timeout=self._timeout_s)
        except MessagingError as error:
            assert isinstance(error, _ERRORS), repr(error)
            self.failed[number] = error
        else:
            assert reply[0] == number, "the reply of another call"
            self.answered.add(number)
            self._answers.append(number)
            self.by_worker[reply[1]] += 1
        elapsed = now() - started
        self.slowest_s = max(self.slowest_s, elapsed)
        assert elapsed < self._timeout_s + SLACK_S, f"call {number} ended after {elapsed:.3f} s"

    def __str__(self) -> str:
        errors = ", ".join(f"{count:,} {name}" for name, count in self.errors.items()) or "none"
        workers = ", ".join(f"{name} {count:,}" for name, count in sorted(self.by_worker.items()))
        return (
            f"{self.made:,} calls: {len(self.answered):,} answered ({workers}), failed: {errors};"
            f" the slowest took {self.slowest_s:.2f} s"
        )


def check_accounts(fabric: Fabric, *loads: CallLoad) -> None:
    """Each call came to one end, and was handled once if it was answered, or never twice."""
    assert all(load.made == len(load.answered) + len(load.failed) for load in loads)
    answered = {number for load in loads for number in load.answered}
    failed = {number for load in loads for number in load.failed}
    handled = [call for satellite in fabric.satellites for call in satellite.handled()]
    ids = Counter(id for _, id in handled)
    numbers = Counter(number for number, _ in handled)
    assert [id for id, count in ids.items() if count > 1] == []
    # A call tries again only what nobody took, so not even a call is ever handled twice.
    assert [number for number, count in numbers.items() if count > 1] == []
    assert answered <= numbers.keys() <= answered | failed


def say(capfd: pytest.CaptureFixture[str], text: str) -> None:
    """Print for whoever looks at a run, although what tests print is kept from them."""
    with capfd.disabled():
        sys.stdout.write(f"\n{text}")
        sys.stdout.flush()
