"""The load a satellite puts on a queue and a topic, and its accounts.

A closed loop: each caller has one call in flight and makes the next when it ended. Most callers are
patient: a call whose outcome is unknown is made again, as another attempt. The others give it up.
"""

from __future__ import annotations

import asyncio
import time

from postroad import errors
from postroad.cells import CellDomain

from .cells_journal import Attempted, Journal, Published
from .traffic import IMPATIENT_EVERY, Ledger

QUEUE, TOPIC = "orders", "prices"
CALLERS = 32
ATTEMPTS = 4
"""Of a patient caller."""
ATTEMPT_TIMEOUT_S = 1.5
PUBLISH_EVERY_S = 0.005


class CellTraffic:
    """Calls and publications until told to stop."""

    def __init__(self, domain: CellDomain, journal: Journal) -> None:
        self._domain = domain
        self._journal = journal
        self._is_stopping = False
        self.ledger = Ledger()
        self.published = 0

    async def run(self) -> None:
        """Call and publish until `stop`, and let the calls in flight end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish_repeatedly())
            for index in range(CALLERS):
                is_patient = index % IMPATIENT_EVERY != IMPATIENT_EVERY - 1
                group.create_task(self._call_repeatedly(ATTEMPTS if is_patient else 1))

    def stop(self) -> None:
        """Make no further calls and publications."""
        self._is_stopping = True

    async def _publish_repeatedly(self) -> None:
        while not self._is_stopping:
            self.published += 1
            self._journal.write(Published(self.published, time.monotonic()))
            self._domain.publish(TOPIC, self.published)
            await asyncio.sleep(PUBLISH_EVERY_S)

    async def _call_repeatedly(self, attempts: int) -> None:
        while not self._is_stopping:
            await self._call(attempts)

    async def _call(self, attempts: int) -> None:
        call, began_s = self.ledger.begin(), time.monotonic()
        for attempt in range(1, attempts + 1):
            error = await self._try(call, attempt, began_s)
            if error is None:
                return
            if attempt == attempts:
                self.ledger.fail(error)
            else:
                self.ledger.meet(error)

    async def _try(self, call: int, attempt: int, began_s: float) -> errors.MessagingError | None:
        """One attempt; gives the error it met."""
        tried_s = time.monotonic()
        try:
            reply = await self._domain.call(QUEUE, [call, attempt], timeout=ATTEMPT_TIMEOUT_S)
        except errors.MessagingError as error:
            ended = Attempted(call, attempt, tried_s, time.monotonic(), outcome=error.outcome.value)
            self._journal.write(ended)
            return error
        now_s = time.monotonic()
        self._journal.write(Attempted(call, attempt, tried_s, now_s, handler=reply[2]))
        self.ledger.answer(
            began_s=began_s,
            now_s=now_s,
            is_right=reply[:2] == [call, attempt],
            was_retried=attempt > 1,
        )
        return None
