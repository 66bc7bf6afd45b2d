"""The client's end of a connection: requests out, replies in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from postroad.core.errors import ConnectionClosed, TlsFailed
from postroad.wire import NEVER, Event, FrameIgnored, Goodbye, Opened, Pending, Phase, Reply, Role

from .link import LARGE_BYTES, Link, LinkContext, is_tls_error
from .results import EXPIRED, LinkDown, Result, link_down

if TYPE_CHECKING:
    import asyncio

    from postroad.core import Address


class DialedLink(Link):
    """A connection this node opened."""

    __slots__ = (
        "_last_id",
        "_peer_reason",
        "_room",
        "_was_open",
        "address",
        "can_send",
        "last_used",
        "opened",
        "pending",
        "pending_max",
        "send_bytes_max",
    )

    role = Role.CLIENT

    def __init__(
        self, context: LinkContext, loop: asyncio.AbstractEventLoop, address: Address
    ) -> None:
        super().__init__(context, loop)
        self.address = address
        # Whether a request may be written now; callers wait while it is False.
        self.can_send = False
        self.pending: Pending[asyncio.Future[Result]] = Pending()
        self.pending_max = context.limits.requests_pending_max
        # Ends with None once the handshake is done, or with what prevented it.
        self.opened: asyncio.Future[LinkDown | None] = loop.create_future()
        # Largest payload and subject the peer accepts, known once the link is open.
        self.send_bytes_max = 0
        self.last_used = loop.time()
        self._last_id = 0
        self._was_open = False
        # What the peer gave as its reason to close.
        self._peer_reason: str | None = None
        # Callers waiting until this link can take another message.
        self._room: deque[asyncio.Future[None]] = deque()

    # Sending.

    def request(
        self, subject: str, payload: bytes, now: float, timeout: float
    ) -> tuple[int, asyncio.Future[Result]]:
        """Write a request; the caller has checked `can_send` and awaits the future."""
        self.last_used = now
        self._last_id = id = self._context.next_id()
        self._context.counters.requests_sent += 1
        self.machine.request(id, subject, payload, _to_ms(timeout))
        future: asyncio.Future[Result] = self._loop.create_future()
        pending = self.pending
        self._post(payload, is_quiet=not pending.entries)
        deadline = now + timeout
        pending.entries[id] = (future, deadline)
        if deadline < pending.next_deadline:
            pending.next_deadline = deadline
            if deadline < self._timer_at:
                self._arm(deadline)
        return id, future

    def post(self, subject: str, payload: bytes, now: float) -> None:
        """Write a one-way message; the caller has checked `can_send`."""
        self.last_used = now
        self._last_id = id = self._context.next_id()
        self._context.counters.messages_sent += 1
        self.machine.request(id, subject, payload, 0, one_way=True)
        self._post(payload, is_quiet=False)

    def _post(self, payload: bytes, *, is_quiet: bool) -> None:
        if len(payload) >= LARGE_BYTES:
            self._has_large = True
            self._flush()
        elif is_quiet and not self._flush_scheduled:
            # Nothing else is going on, so waiting for company would only add latency.
            self._flush()
        else:
            self._schedule_flush()

    def abandon(self, id: int) -> None:
        """The caller no longer waits for this request."""
        if self.pending.take(id) is not None:
            self._context.counters.requests_cancelled += 1
            if self.is_open:
                self.machine.cancel(id)
                self._schedule_flush()
            self._make_room()

    def is_peer(self, name: str) -> bool:
        """Whether the node at the other end has that name, as far as it can be known."""
        if self.machine.peer is not None:
            return self.machine.peer.name == name
        names = self.machine.certificate_names
        return names is None or name in names

    @property
    def has_room(self) -> bool:
        """Whether the caller may send now."""
        return self.can_send and len(self.pending.entries) < self.pending_max

    async def wait_for_room(self) -> None:
        """Return when the link may have room again, or is gone."""
        future = self._loop.create_future()
        self._room.append(future)
        try:
            await future
        finally:
            if not future.done() or future.cancelled():
                self._room.remove(future)

    def _make_room(self) -> None:
        """Wake as many waiting callers as can go on."""
        room = self.pending_max - len(self.pending.entries) if self.can_send else 0
        while self._room and (room > 0 or self.transport is None):
            future = self._room.popleft()
            if not future.done():
                future.set_result(None)
                room -= 1

    # Receiving.

    def _receive(self, data: bytes, now: float) -> None:
        events = self.machine.receive_data(data, now)
        take = self.pending.entries.pop
        received = 0
        for event in events:
            if type(event) is Reply:
                entry = take(event.id, None)
                if entry is not None:
                    received += 1
                    if not entry[0].done():
                        entry[0].set_result(event)
                else:
                    self._on_unasked(event, now)
            else:
                self._on_event(event, now)
        self._context.counters.replies_received += received
        if self._room:
            self._make_room()

    def _on_event(self, event: Event, now: float) -> None:
        if isinstance(event, Opened):
            self._was_open = True
            self._context.counters.connections_opened += 1
            if self.machine.peer is not None:
                self.pending_max = min(self.pending_max, self.machine.peer.requests_pending_max)
            self.send_bytes_max = self.machine.send_bytes_max
            self._update_can_send()
            self.opened.set_result(None)
            self._settle()
        elif isinstance(event, Goodbye):
            self._peer_reason = event.reason
            self._update_can_send()
            if not self.pending.entries:
                self.close(f"the peer said goodbye: {event.reason}")
        elif isinstance(event, FrameIgnored):
            self._context.counters.frames_ignored += 1
            self._context.warn(
                "ignored", now, "ignored a %s frame from %s", event.kind, self.remote
            )

    def _on_unasked(self, reply: Reply, now: float) -> None:
        """A reply to a request that was given up, or that never was."""
        if 0 < reply.id <= self._last_id:
            self._context.counters.replies_late += 1
            return
        self._context.counters.frames_ignored += 1
        self.machine.refuse_unasked_reply(reply)
        self._context.warn(
            "unasked", now, "%s replied to request %d, which was never sent", self.remote, reply.id
        )

    # The life of the link.

    def _on_writable(self, is_writable: bool) -> None:
        self._update_can_send()
        if is_writable:
            self._make_room()

    def _update_can_send(self) -> None:
        self.can_send = self.is_open and self._is_writable

    def close(self, reason: str) -> None:
        super().close(reason)
        self.can_send = False

    def _own_deadline(self) -> float:
        idle_at = NEVER
        if not self.pending.entries and self._was_open:
            idle_at = self.last_used + self._context.limits.idle_close_s
        return min(self.pending.next_deadline, idle_at)

    def _on_timer(self, now: float) -> None:
        for id, future in self.pending.take_expired(now):
            if not future.done():
                self._context.counters.requests_timed_out += 1
                future.set_result(EXPIRED)
            if self.is_open:
                self.machine.cancel(id)
        if self._room:
            self._make_room()
        if self.machine.phase is Phase.DRAINING and not self.pending.entries:
            self.close("drained")
        elif self._own_deadline() <= now and not self.pending.entries and self.is_open:
            self.machine.goodbye("idle")
            self.close("idle")

    def fail_pending(self, result: LinkDown) -> None:
        """End every request in flight the same way."""
        for _, future in self.pending.take_all():
            if not future.done():
                future.set_result(result)

    def _on_lost(self, exc: Exception | None) -> None:
        self.can_send = False
        kind = TlsFailed if is_tls_error(exc) and not self._was_open else ConnectionClosed
        down = link_down(kind, self._describe_loss(exc), was_open=self._was_open)
        if self._was_open and self._close_reason is None and self._peer_reason is None:
            self._context.counters.connections_lost += 1
        if not self.opened.done():
            self.opened.set_result(down)
        self.fail_pending(down)
        self._make_room()

    def _describe_loss(self, exc: Exception | None) -> str:
        if self._close_reason is not None:
            return f"connection closed: {self._close_reason}"
        if self._peer_reason is not None:
            return f"the peer closed the connection: {self._peer_reason}"
        if exc is not None:
            return f"connection lost: {exc}"
        if not self._was_open:
            return (
                "the peer closed the connection during the handshake; "
                "is it of another cluster, version or TLS setting?"
            )
        return "the peer closed the connection"

    def __repr__(self) -> str:
        state = self.machine.phase.value if self.transport is not None else "closed"
        return f"<DialedLink {self.address} {state}, {len(self.pending)} pending>"


def _to_ms(timeout: float) -> int:
    """A timeout as version 3 tells it: at least 1, because 0 means none."""
    return max(1, min(int(timeout * 1000), 0xFFFF_FFFF))
