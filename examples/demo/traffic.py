"""The load one node puts on another, and its accounts.

A closed loop: each caller has one request in flight and makes the next when it ended. Most callers
are patient: a request that never left is sent again and waits for the peer. The others give up at
once, which keeps errors coming while the peer is away. Nobody repeats a request whose outcome is
unknown, because the peer may have handled it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

import msgspec

from postroad import MessagingService, Outcome, errors

from .records import Report, Totals, Trouble

SUBJECT = "mirror"
# Subjects of one class share a connection, and there is one subject.
CONNECTIONS = 1
PATIENT_TIMEOUT_S = 30.0
# One caller in so many gives up at once.
IMPATIENT_EVERY = 8
IMPATIENT_PAUSE_S = 0.1

_NUMBER_BYTES = 8


def make_payload(number: int, size: int) -> bytes:
    """Every request carries its number, so no two are alike."""
    return number.to_bytes(_NUMBER_BYTES, "big").ljust(max(size, _NUMBER_BYTES), b".")


def mirror(payload: bytes) -> bytes:
    """What the peer answers: other bytes than it was sent, so it must have looked at them."""
    return payload[::-1]


class Latencies:
    """A histogram whose buckets grow by 5 %: small, quick to add to, and can be summed."""

    _GROWTH = math.log(1.05)
    _FIRST_S = 1e-6

    def __init__(self, buckets: Mapping[int, int] | None = None) -> None:
        self.buckets: dict[int, int] = dict(buckets or {})

    def add(self, seconds: float) -> None:
        """Count one latency."""
        bucket = int(math.log(max(seconds, self._FIRST_S) / self._FIRST_S) / self._GROWTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, buckets: Mapping[int, int]) -> None:
        """Add the counts of another histogram."""
        for bucket, count in buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def quantile(self, share: float) -> float | None:
        """Seconds that this share of the latencies did not exceed; None without any."""
        left = share * sum(self.buckets.values())
        for bucket, count in sorted(self.buckets.items()):
            left -= count
            if left <= 0:
                return self._FIRST_S * math.exp((bucket + 0.5) * self._GROWTH)
        return None


class Ledger:
    """Accounts of requests. Pure: whoever uses it tells the time.

    Each request is begun once and ends once, answered or failed; errors met on the way are counted
    besides. Whatever is neither answered nor failed is in flight.
    """

    def __init__(self) -> None:
        self._totals = Totals()
        self._troubles: dict[tuple[str, Outcome], Trouble] = {}
        self._latencies = Latencies()
        self._last_answer_s: float | None = None
        # Whether an error came after the last answer.
        self._is_troubled = False

    def begin(self) -> int:
        """A request is made; returns its number."""
        self._totals.made += 1
        return self._totals.made

    def answer(
        self, *, began_s: float, now_s: float, is_right: bool, was_retried: bool = False
    ) -> None:
        """A request ended with a reply."""
        totals = self._totals
        totals.answered += 1
        totals.answered_after_retry += was_retried
        totals.wrong += not is_right
        self._latencies.add(now_s - began_s)
        if self._is_troubled:
            self._end_trouble(now_s)
        self._last_answer_s = now_s

    def meet(self, error: errors.MessagingError) -> None:
        """A caller met an error and sends its request again."""
        self._trouble(error).met += 1

    def fail(self, error: errors.MessagingError) -> None:
        """A request ended with an error."""
        trouble = self._trouble(error)
        trouble.met += 1
        trouble.failed += 1

    def totals(self) -> Totals:
        """The accounts as they stand, for keeping."""
        troubles = [msgspec.structs.replace(it) for it in self._troubles.values()]
        return msgspec.structs.replace(self._totals, troubles=troubles)

    def take_latencies(self) -> dict[int, int]:
        """Latencies since the last call."""
        taken, self._latencies = self._latencies, Latencies()
        return taken.buckets

    def _end_trouble(self, now_s: float) -> None:
        self._is_troubled = False
        gap_s = 0.0 if self._last_answer_s is None else now_s - self._last_answer_s
        if gap_s > self._totals.longest_gap_s:
            self._totals.longest_gap_s = gap_s
            self._totals.gap_ended_s = now_s

    def _trouble(self, error: errors.MessagingError) -> Trouble:
        self._is_troubled = True
        key = (type(error).__name__, error.outcome)
        if key not in self._troubles:
            self._troubles[key] = Trouble(error=key[0], outcome=error.outcome.value)
        return self._troubles[key]


class Traffic:
    """Callers that keep a peer busy until told to stop."""

    def __init__(
        self, service: MessagingService, peer: str, *, callers: int, payload_bytes: int
    ) -> None:
        self._service = service
        self._peer = peer
        self._callers = callers
        self._payload_bytes = payload_bytes
        self._ledger = Ledger()
        self._is_stopping = False

    async def run(self) -> None:
        """Make requests until `stop`, and let those in flight end."""
        async with asyncio.TaskGroup() as group:
            for index in range(self._callers):
                is_patient = index % IMPATIENT_EVERY != IMPATIENT_EVERY - 1
                group.create_task(self._call_repeatedly(is_patient=is_patient))

    def stop(self) -> None:
        """Make no further requests."""
        self._is_stopping = True

    def report(self) -> Report:
        """What happened until now."""
        statistics = self._service.statistics()
        return Report(
            at_s=time.monotonic(),
            totals=self._ledger.totals(),
            latencies=self._ledger.take_latencies(),
            connections=statistics.dialed,
            reconnects=max(0, statistics.connections_opened - CONNECTIONS),
        )

    async def _call_repeatedly(self, *, is_patient: bool) -> None:
        while not self._is_stopping:
            if is_patient:
                await self._call_patiently()
            elif not await self._call_once():
                await asyncio.sleep(IMPATIENT_PAUSE_S)

    async def _call_once(self) -> bool:
        """One request; False if it failed."""
        payload = make_payload(self._ledger.begin(), self._payload_bytes)
        began_s = time.monotonic()
        try:
            reply = await self._service.request(self._peer, SUBJECT, payload)
        except errors.MessagingError as error:
            self._ledger.fail(error)
            return False
        self._settle(payload, reply, began_s)
        return True

    async def _call_patiently(self) -> None:
        """One request, sent again as long as it never left this node."""
        payload = make_payload(self._ledger.begin(), self._payload_bytes)
        began_s = time.monotonic()
        deadline_s = began_s + PATIENT_TIMEOUT_S
        was_retried = False
        while True:
            timeout_s = max(deadline_s - time.monotonic(), 0.001)
            try:
                reply = await self._service.request(
                    self._peer, SUBJECT, payload, timeout=timeout_s, wait=was_retried
                )
            except errors.MessagingError as error:
                if not (error.retryable and error.outcome is Outcome.NOT_SENT):
                    self._ledger.fail(error)
                    return
                self._ledger.meet(error)
                was_retried = True
            else:
                self._settle(payload, reply, began_s, was_retried=was_retried)
                return

    def _settle(
        self, payload: bytes, reply: bytes, began_s: float, *, was_retried: bool = False
    ) -> None:
        self._ledger.answer(
            began_s=began_s,
            now_s=time.monotonic(),
            is_right=reply == mirror(payload),
            was_retried=was_retried,
        )
