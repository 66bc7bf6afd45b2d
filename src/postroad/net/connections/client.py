"""The client side of a connection: sends requests, receives replies.

Where a sender waits: in `wait_for_capacity`, while the peer has `requests_pending_max` requests of
this connection or does not read. Callers wait in their order, until their timeouts; a message that
was written waits nowhere else in this process but in the write buffer of the transport.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from postroad.core import Address
from postroad.core.errors import ConnectionClosedError, Outcome
from postroad.core.tracing import SpanContext
from postroad.net.connections.connection import FRAME_BYTES, QUEUED_BYTES_MAX, PeerConnection
from postroad.net.connections.disconnect import LINGER_S
from postroad.net.context import ConnectionContext
from postroad.net.requests import (
    EXPIRED,
    ConnectionDown,
    RequestAttempt,
    RequestResult,
    check_size,
    wrong_peer_error,
)
from postroad.wire import (
    NEVER,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    DeadlineMap,
    FrameIgnored,
    GoodbyeFrame,
    ReplyFrame,
)


class ClientConnection(PeerConnection):
    """A connection that this node opened."""

    __slots__ = (
        "_ended",
        "_is_draining",
        "_new_future",
        "_next_id",
        "_queue_request",
        "_waiting",
        "address",
        "can_send",
        "last_used",
        "opened",
        "peer_names",
        "pending",
        "pending_max",
        "send_bytes_max",
    )

    role = ConnectionRole.CLIENT

    def __init__(
        self, context: ConnectionContext, loop: asyncio.AbstractEventLoop, address: Address
    ) -> None:
        super().__init__(context, loop)
        self.address = address
        # Whether a request can be written now; callers wait while it is False.
        self.can_send = False
        self.pending: DeadlineMap[asyncio.Future[RequestResult]] = DeadlineMap()
        self.pending_max = context.limits.requests_pending_max
        # The result is None after the handshake, or the reason why it failed.
        self.opened: asyncio.Future[ConnectionDown | None] = loop.create_future()
        # The names of the peer, if the protocol tells them, and the maximum size of payload and
        # subject that it accepts; set when the connection opens.
        self.peer_names: Collection[str] = ()
        self.send_bytes_max = 0
        self.last_used = loop.time()
        self._next_id = context.next_id
        self._new_future = loop.create_future
        # Requests that are no longer pending: replied, expired, cancelled or failed.
        self._ended = 0
        # Set when the version is negotiated.
        self._queue_request: Callable[[int, str, bytes, int, bool], None]
        self._is_draining = False
        # Callers that wait for capacity, in their order.
        self._waiting: deque[asyncio.Future[None]] = deque()

    # Sending.

    def request(
        self,
        subject: str,
        payload: bytes,
        now: float,
        timeout: float,
        trace: SpanContext | None = None,
    ) -> tuple[int, asyncio.Future[RequestResult]]:
        """Write a request; the caller has checked `can_send` and awaits the future."""
        id = self._next_id()
        timeout_ms = int(timeout * 1000) or 1
        if trace is None:
            self._queue_request(id, subject, payload, timeout_ms, False)
        else:
            self.wire.request(id, subject, payload, timeout_ms, False, trace)
        pending = self.pending
        entries = pending.entries
        self._queued_bytes += len(payload) + FRAME_BYTES
        if not self._flush_scheduled or self._queued_bytes >= QUEUED_BYTES_MAX:
            self.last_used = now
            # On a nearly idle connection, batching would only add latency.
            is_idle = not entries and self._last_batch <= 1
            if is_idle or self._queued_bytes >= QUEUED_BYTES_MAX:
                self._flush()
            else:
                self._schedule_flush()
        future = self._new_future()
        deadline = now + timeout
        entries[id] = (future, deadline)
        if deadline < pending.next_deadline:
            pending.next_deadline = deadline
            if deadline < self._timer_at:
                self._set_timer(deadline)
        if len(entries) >= self.pending_max:
            self.can_send = False
        return id, future

    def send_one_way(
        self, subject: str, payload: bytes, now: float, trace: SpanContext | None = None
    ) -> None:
        """Write a one-way message; the caller has checked `can_send`."""
        self.wire.request(self._next_id(), subject, payload, 0, True, trace)
        self.last_used = now
        self._context.counters.messages_sent += 1
        self._queued_bytes += len(payload) + FRAME_BYTES
        if self._queued_bytes >= QUEUED_BYTES_MAX:
            self._flush()
        else:
            self._schedule_flush()

    @property
    def has_pending_flush(self) -> bool:
        """Whether queued frames will be written at the end of this loop iteration."""
        return self._flush_scheduled

    @property
    def requests_sent(self) -> int:
        """The number of requests written, for the statistics."""
        return self._ended + len(self.pending.entries)

    def cancel_request(self, id: int) -> None:
        """Remove a request whose caller no longer waits, and tell the peer."""
        if self.pending.pop(id) is not None:
            self._ended += 1
            self._context.counters.requests_cancelled += 1
            if self.is_open:
                self.wire.cancel(id)
                self._schedule_flush()
            self._wake_next_waiter()

    def check(self, attempt: RequestAttempt) -> None:
        """Raise unless it is open, to the expected peer, and can carry the message."""
        attempt.peer = self.describe_peer(attempt.target)
        error = wrong_peer_error(attempt.expected_peer, self.wire.peer_names, attempt.peer)
        if error is not None:
            raise error
        if not self.is_open:
            raise ConnectionClosedError("closed before the request", outcome=Outcome.NOT_SENT)
        check_size(attempt.subject, attempt.payload, self.send_bytes_max)

    async def wait_for_capacity(self) -> bool:
        """Wait for capacity; return False if the connection accepts no more requests.

        Only the first waiter is woken, and it keeps its place until it has capacity, so messages
        are sent in the order of their calls.
        """
        turn = self._loop.create_future()
        self._waiting.append(turn)
        try:
            while True:
                await turn
                if self._has_capacity or not self._accepts_requests:
                    return self._has_capacity
                turn = self._waiting[0] = self._loop.create_future()
        finally:
            self._waiting.remove(turn)
            # The next waiter is woken after this caller had its chance to send.
            self._loop.call_soon(self._wake_next_waiter)

    @property
    def _accepts_requests(self) -> bool:
        return self.is_open and not self._is_draining

    @property
    def _has_capacity(self) -> bool:
        has_slot = len(self.pending.entries) < self.pending_max
        return has_slot and self._is_writable and self._accepts_requests

    def _wake_next_waiter(self) -> None:
        """Wake the first waiter if there is capacity, or if there will be none."""
        self.can_send = self._has_capacity and not self._waiting
        if self._waiting and (self._has_capacity or not self._accepts_requests):
            turn = self._waiting[0]
            if not turn.done():
                turn.set_result(None)

    # Receiving.

    def _on_events(self, events: list[ConnectionEvent], now: float) -> None:
        pop = self.pending.entries.pop
        received = 0
        for event in events:
            if type(event) is ReplyFrame:
                entry = pop(event.id, None)
                if entry is not None:
                    received += 1
                    if not entry[0].done():
                        entry[0].set_result(event)
                else:
                    self._on_unmatched_reply(event)
            else:
                self._on_event(event, now)
        self._ended += received
        self._context.counters.replies_received += received
        if not self.can_send:
            self._wake_next_waiter()
            self._close_when_drained()

    def _on_event(self, event: ConnectionEvent, now: float) -> None:
        if isinstance(event, ConnectionOpened):
            self._was_open = True
            self._context.counters.connections_opened += 1
            if self.wire.peer is not None:
                self.pending_max = min(self.pending_max, self.wire.peer.requests_pending_max)
            self.peer_names = self.wire.peer_names or ()
            self.send_bytes_max = self.wire.send_bytes_max
            self._queue_request = self.wire.queue_request
            self._wake_next_waiter()
            self.opened.set_result(None)
        elif isinstance(event, GoodbyeFrame):
            self._record_goodbye(event)
            self._wake_next_waiter()
            self._close_when_drained()
        elif isinstance(event, FrameIgnored):
            self._log_ignored_frame(event)

    def _on_unmatched_reply(self, reply: ReplyFrame) -> None:
        """Count a reply whose request has ended, or log one whose request was never sent."""
        if 0 < reply.id < self._next_id():
            self._context.counters.replies_late += 1
            return
        self._context.counters.frames_ignored += 1
        self.wire.on_unmatched_reply(reply)
        self._context.warn(
            "unmatched", "%s replied to request %d, which was never sent", self.remote, reply.id
        )

    # Lifecycle.

    def _on_writable(self, is_writable: bool) -> None:
        self._wake_next_waiter()

    def close(self, reason: str, linger_s: float = LINGER_S) -> None:
        """Close; pending requests fail when the socket is closed."""
        super().close(reason, linger_s)
        self._wake_next_waiter()

    @property
    def is_idle(self) -> bool:
        """Whether no request is pending, waiting or unwritten."""
        is_written = self.transport is None or not self.transport.get_write_buffer_size()
        return is_written and not (self.pending.entries or self._waiting or self.wire.outgoing)

    def _own_deadline(self) -> float:
        idle_at = NEVER
        if not self.pending.entries and self._was_open:
            idle_at = self.last_used + self._context.limits.idle_timeout_s
        return min(self.pending.next_deadline, idle_at)

    def _on_timer(self, now: float) -> None:
        for id, future in self.pending.pop_expired(now):
            self._ended += 1
            if not future.done():
                self._context.counters.requests_timed_out += 1
                future.set_result(EXPIRED)
            if self.is_open:
                self.wire.cancel(id)
        self._wake_next_waiter()
        self._close_when_drained()
        if self._own_deadline() <= now and not self.pending.entries and self.is_open:
            self.wire.goodbye("idle")
            self.close("idle")

    def drain(self) -> None:
        """Accept no more requests; those in flight continue."""
        self._is_draining = True
        self._wake_next_waiter()

    def _close_when_drained(self) -> None:
        if self.wire.state is ConnectionState.DRAINING and not self.pending.entries:
            self.close(f"the peer said goodbye: {self._peer_reason}")

    def fail_pending(self, result: ConnectionDown) -> None:
        """Complete every pending request with this result."""
        self._ended += len(self.pending)
        for _, future in self.pending.pop_all():
            if not future.done():
                future.set_result(result)

    def _on_connection_lost(self, exc: Exception | None, *, was_open: bool) -> None:
        self.can_send = False
        down = ConnectionDown(self._record_loss(exc, self._close_reason).error())
        if not self.opened.done():
            self.opened.set_result(down)
        self.fail_pending(down)
        self._context.counters.requests_sent += self._ended
        self._wake_next_waiter()

    def __repr__(self) -> str:
        state = self.wire.state.value if self.transport is not None else "closed"
        return f"<ClientConnection {self.address} {state}, {len(self.pending)} pending>"
