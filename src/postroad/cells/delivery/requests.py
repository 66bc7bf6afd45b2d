"""Pending calls, their retries, and the resend buffer of one-way messages.

What is retried: only messages that failed with NoRouteError before any handler got them. When a
core has no route, the next core is tried at once. When all were tried, a call waits for a route
change and retries until its timeout; a one-way message is logged as undelivered. Timeouts, errors
of handlers and CellBusyError are not retried; the dispatcher has tried other tunnels before.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.failure import DeliveryFailure
from postroad.cells.delivery.fast_paths import CallFastPath
from postroad.cells.errors import CellBusyError, NoRouteError
from postroad.cells.messages import BYTES, CellReply
from postroad.cells.routing.decision import LOCAL_ORIGIN, LocalDelivery, MessageOrigin
from postroad.core.errors import MessagingError, NotRunningError, Outcome, ReplyTimeoutError


class SentMessage(NamedTuple):
    """A sent one-way message and the targets that were tried."""

    envelope: Envelope
    avoid: frozenset[str]
    sent_at: float
    """Time of the event loop when it was sent."""


class ResendBuffer:
    """Bounded buffer of the last one-way messages, for resending."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._sent: dict[bytes, SentMessage] = {}
        self._bytes = 0

    def put(self, sent: SentMessage) -> None:
        """Store a message, and evict the oldest ones above the limits."""
        memory_bytes = sent.envelope.memory_bytes
        if memory_bytes > self._bytes_max:
            return
        self.pop(sent.envelope.id)
        self._sent[sent.envelope.id] = sent
        self._bytes += memory_bytes
        while len(self._sent) > self._messages_max or self._bytes > self._bytes_max:
            self.pop(next(iter(self._sent)))

    def pop(self, id: bytes) -> SentMessage | None:
        sent = self._sent.pop(id, None)
        if sent is not None:
            self._bytes -= sent.envelope.memory_bytes
        return sent

    def __len__(self) -> int:
        return len(self._sent)


_NO_TARGETS: frozenset[str] = frozenset()
# Subscribers got their copies with the first attempt.
_RESEND_ORIGIN = MessageOrigin(allow_fan_out=False)

EnvelopeFactory: TypeAlias = Callable[[int | None], Envelope]
"""Builds the envelope of each attempt, with a new id, from the remaining milliseconds."""

_Result: TypeAlias = CellReply | DeliveryFailure | MessagingError
_Reply: TypeAlias = bytes | CellReply | DeliveryFailure
"""What completes a call; bytes are a reply of that content type, whose path nobody needs."""


class FailedRequest(NamedTuple):
    """First attempt of a call that failed."""

    result: DeliveryFailure | MessagingError
    selected_targets: list[str]
    """Targets that were selected among routes."""
    started: float


class CellCallTracker:
    """Pending calls and resends of the cells of a domain."""

    def __init__(self, dispatcher: MessageDispatcher) -> None:
        self._dispatcher = dispatcher
        self._loop = dispatcher.loop
        self._now = dispatcher.loop.time
        # Reply future and deadline by message id.
        self._pending: dict[bytes, tuple[asyncio.Future[_Result | bytes], float]] = {}
        # Calls that have not ended, including those that wait for routes; fast ones are pending.
        self._active = 0
        self._is_closed = False
        # One timer for all calls, at the earliest deadline or before it.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._resends = ResendBuffer(
            dispatcher.config.resend_messages_max, dispatcher.config.resend_bytes_max
        )
        # Calls that wait for a route change, in order.
        self._route_waiters: dict[asyncio.Future[None], None] = {}
        dispatcher.on_reply = self._on_reply
        dispatcher.registry.on_change.append(self._on_change)

    def __len__(self) -> int:
        return len(self._pending)

    # Sending.

    def send(self, envelope: Envelope, avoid: frozenset[str] = _NO_TARGETS) -> None:
        """Send a one-way message; raises the failure if it is known at once."""
        failure = self._send(envelope, avoid)
        if failure is not None:
            raise failure.to_error()

    def _send(self, envelope: Envelope, avoid: frozenset[str]) -> DeliveryFailure | None:
        selected_targets: list[str] = []
        origin = _RESEND_ORIGIN if avoid else LOCAL_ORIGIN
        failure = self._dispatcher.dispatch(
            envelope, origin, avoid, selected_targets=selected_targets
        )
        if failure is None and selected_targets and not envelope.suppress_errors:
            self._resends.put(SentMessage(envelope, avoid.union(selected_targets), self._now()))
        return failure

    def _resend(self, id: bytes, failure: DeliveryFailure) -> bool:
        """Resend a failed one-way message to the remaining targets; False if it is not buffered."""
        sent = self._resends.pop(id)
        if sent is None:
            return False
        if is_routing_failure(failure):
            self._dispatcher.statistics.resent += 1
            waited_s = self._now() - sent.sent_at
            if self._send(sent.envelope.with_elapsed(int(waited_s * 1000)), sent.avoid) is None:
                return True
        self._dispatcher.log_undelivered(sent.envelope, failure)
        return True

    # Calling.

    async def call(
        self,
        build_envelope: EnvelopeFactory,
        timeout_s: float,
        *,
        wait: bool,
        first: FailedRequest | None = None,
    ) -> CellReply:
        """Send a request until it gets a reply, fails, or times out.

        `first` is a first attempt that was made on the fast path.
        """
        envelope = build_envelope(round(timeout_s * 1000))
        self._active += 1
        try:
            if first is None:
                started, selected_targets = self._now(), list[str]()
                result = await self._attempt(
                    envelope, started + timeout_s, _NO_TARGETS, selected_targets
                )
            else:
                result, selected_targets, started = first
            if type(result) is CellReply:
                return result
            return await self._retry(
                build_envelope, envelope, result, selected_targets, started, timeout_s, wait
            )
        finally:
            self._active -= 1

    async def call_fast(
        self, fast_path: CallFastPath, payload: bytes, timeout_s: float
    ) -> bytes | CellReply | FailedRequest | None:
        """Send a request on a fast path; return None if it could not be sent.

        Bytes are a reply of that content type; `call` continues with a FailedRequest.
        """
        started = self._now()
        id = self._dispatcher.new_id()
        reply = self._add_pending(id, started + timeout_s)
        try:
            if not fast_path.send(id, round(timeout_s * 1000), payload):
                return None
            self._dispatcher.statistics.forwarded += 1
            result = await reply
        finally:
            del self._pending[id]
        if isinstance(result, bytes | CellReply):
            return result
        selected_targets = [] if fast_path.selected_target is None else [fast_path.selected_target]
        return FailedRequest(result, selected_targets, started)

    async def _retry(
        self,
        build_envelope: EnvelopeFactory,
        envelope: Envelope,
        result: _Result,
        selected_targets: list[str],
        started: float,
        timeout_s: float,
        wait: bool,
    ) -> CellReply:
        """Retry after a routing failure: other targets first, then after each route change."""
        deadline = started + timeout_s
        avoid = _NO_TARGETS
        reported: DeliveryFailure | None = None
        while not isinstance(result, CellReply):
            if not isinstance(result, DeliveryFailure) or not is_routing_failure(result):
                raise self._error(result, envelope, started, timeout_s)
            # The failure of a core says more than the local one that no core is left.
            if reported is None or result.domain != self._dispatcher.domain.name:
                reported = result
            last = envelope.destination.last
            is_final = last is not None and result.domain == last.domain
            if selected_targets and not is_final:
                avoid = avoid.union(selected_targets)
            elif wait and await self._wait_for_route_change(deadline):
                avoid = _NO_TARGETS
            else:
                raise self._error(reported, envelope, started, timeout_s)
            envelope = build_envelope(max(1, round((deadline - self._now()) * 1000)))
            selected_targets = []
            result = await self._attempt(envelope, deadline, avoid, selected_targets)
        return result

    async def _attempt(
        self,
        envelope: Envelope,
        deadline: float,
        avoid: frozenset[str],
        selected_targets: list[str],
    ) -> _Result:
        reply = self._add_pending(envelope.id, deadline)
        try:
            origin = _RESEND_ORIGIN if avoid else LOCAL_ORIGIN
            failure = self._dispatcher.dispatch(
                envelope, origin, avoid, selected_targets=selected_targets
            )
            if failure is not None:
                return failure
            result = await reply
            return CellReply(BYTES, result) if isinstance(result, bytes) else result
        finally:
            del self._pending[envelope.id]

    async def deliver_local(
        self, delivery: LocalDelivery, timeout_s: float, transaction: Any
    ) -> CellReply:
        """Deliver a message to a cell of this domain without routing, and wait for its end."""
        started = self._now()
        envelope = delivery.envelope
        reply = self._add_pending(envelope.id, started + timeout_s)
        runner = self._dispatcher.registry.runners[delivery.cell]
        try:
            if not runner.deliver(delivery, started, self._dispatcher.domain.name, transaction):
                raise CellBusyError(
                    f"mailbox of cell {runner.name} is full: {len(runner.mailbox)} messages"
                )
            result = await reply
        finally:
            del self._pending[envelope.id]
            runner.cancel(envelope.id)
        if isinstance(result, CellReply):
            return result
        assert not isinstance(result, bytes)  # Those come through tunnels.
        raise self._error(result, envelope, started, timeout_s)

    async def _wait_for_route_change(self, deadline: float) -> bool:
        """Wait for a route change, or `route_retry_s`; return False if the call timed out."""
        now = self._now()
        pause_s = min(self._dispatcher.config.route_retry_s, deadline - now)
        if pause_s <= 0 or self._is_closed:
            return False
        waiter = self._loop.create_future()
        self._route_waiters[waiter] = None
        try:
            await asyncio.wait({waiter}, timeout=pause_s)
        finally:
            del self._route_waiters[waiter]
        return self._now() < deadline

    def _error(
        self, result: _Result, envelope: Envelope, started: float, timeout_s: float
    ) -> MessagingError:
        error = result.to_error() if isinstance(result, DeliveryFailure) else result
        assert isinstance(error, MessagingError)
        return error.with_context(
            peer=str(envelope.destination.last),
            subject=str(envelope.destination),
            elapsed_s=self._now() - started,
            timeout_s=timeout_s,
        )

    # Events.

    def _add_pending(self, id: bytes, deadline: float) -> asyncio.Future[_Result | bytes]:
        reply: asyncio.Future[_Result | bytes] = self._loop.create_future()
        self._pending[id] = reply, deadline
        if deadline < self._timer_at:
            self._arm(deadline)
        return reply

    def _on_reply(self, id: bytes, reply: _Reply) -> bool:
        entry = self._pending.get(id)
        if entry is None:
            return isinstance(reply, DeliveryFailure) and self._resend(id, reply)
        if not entry[0].done():
            entry[0].set_result(reply)
        return True

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._expire) if when < math.inf else None

    def _expire(self) -> None:
        """Complete the calls that timed out, and set the timer for the next."""
        now = self._now()
        next_deadline = math.inf
        for reply, deadline in self._pending.values():
            if deadline > now:
                next_deadline = min(next_deadline, deadline)
            elif not reply.done():
                reply.set_result(ReplyTimeoutError("no reply in time"))
        self._arm(next_deadline)

    def _on_change(self) -> None:
        for waiter in self._route_waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_finished(self) -> None:
        """Wait until all calls have ended, which they do soon after `close`."""
        while self._active or self._pending:  # noqa: ASYNC110 - calls do not signal their end
            await asyncio.sleep(0)

    def close(self) -> None:
        """Fail all pending calls, because the domain stops."""
        self._is_closed = True
        text = "the domain stopped while the call was in flight"
        for reply, _ in self._pending.values():
            if not reply.done():
                reply.set_result(NotRunningError(text, outcome=Outcome.UNKNOWN))
        self._arm(math.inf)
        self._on_change()


def is_routing_failure(failure: DeliveryFailure) -> bool:
    """Return whether a message was not delivered because there was no route."""
    return failure.code == NoRouteError.code and not failure.is_handler_error
