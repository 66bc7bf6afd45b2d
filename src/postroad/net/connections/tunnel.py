"""A tunnel: a connection on which both sides send one-way messages at any time.

Messages of one read are delivered in one call, and messages sent within one loop iteration leave in
one write. Nothing is awaited: when a sender is too fast, `can_send` becomes False.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from postroad.core.errors import (
    ConnectionClosedError,
    HandshakeRejectedError,
    Outcome,
    UsageError,
    WrongPeerError,
)
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.net.connections.connection import (
    FRAME_BYTES,
    LARGE_BYTES,
    NOT_CONNECTED,
    QUEUED_BYTES_MAX,
    PeerConnection,
)
from postroad.net.connections.disconnect import LINGER_S
from postroad.net.context import ConnectionContext, logger
from postroad.net.requests import check_size, validate_message, wrong_peer_error
from postroad.wire import (
    NEVER,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    GoodbyeFrame,
    HelloFrame,
    RequestFrame,
    WireConfig,
)


class TunnelHandler(Protocol):
    """Callbacks of the owner of a tunnel; the event loop calls them, so they must not block."""

    def on_messages(self, requests: list[RequestFrame]) -> None:
        """Handle the messages of one read, in the order in which the peer sent them."""

    def on_writable(self) -> None:
        """Handle that the write buffer has drained: `can_send` is True again."""

    def on_lost(self, reason: str) -> None:
        """Handle the loss of the tunnel; called exactly once, as the last callback."""


# Smaller than any message: a tunnel that is not open takes the checked path.
_NOTHING = -1


TunnelAcceptor: TypeAlias = "Callable[[Tunnel], TunnelHandler]"
"""Returns the handler of a new tunnel, or raises HandshakeRejectedError for the peer."""


class Tunnel(PeerConnection):
    """Either end of a tunnel."""

    __slots__ = (
        "_accept",
        "_expected",
        "_fast_path_bytes_max",
        "_handler",
        "_on_closed",
        "_ping_at",
        "_queue_request",
        "_receive",
        "can_send",
        "messages_received",
        "messages_sent",
        "opened",
        "peer",
        "role",
        "send_bytes_max",
    )

    def __init__(
        self,
        context: ConnectionContext,
        loop: asyncio.AbstractEventLoop,
        role: ConnectionRole,
        accept: TunnelAcceptor | None,
        on_closed: Callable[[Tunnel, None], object],
        expected: str | None = None,
    ) -> None:
        super().__init__(context, loop)
        self.role = role
        # Whether the tunnel is open and its write buffer is below the limit.
        self.can_send = False
        # The hello of the peer, and the maximum size of payload and subject; set on opening.
        self.peer: HelloFrame
        self.send_bytes_max = 0
        self.messages_sent = 0
        self.messages_received = 0
        # The result is None when the tunnel has its handler, or the error that prevented it.
        self.opened: asyncio.Future[ConnectionClosedError | None] = loop.create_future()
        # None rejects the tunnel.
        self._accept = accept
        # Removes the tunnel from the collection of open ones.
        self._on_closed = on_closed
        # The name that the peer must have, if any.
        self._expected = expected
        self._handler: TunnelHandler | None = None
        # The handler's method, from the opening until nothing more can be received.
        self._receive: Callable[[list[RequestFrame]], None] | None = None
        # Messages up to this size take the fast path; none do unless the tunnel is open.
        self._fast_path_bytes_max = _NOTHING
        # Set when the tunnel opens.
        self._queue_request: Callable[[int, str, bytes, int, bool], None]
        self._ping_at = NEVER

    @property
    def round_trip_s(self) -> float | None:
        """The last round trip in seconds, including the time in the write buffer; None at first."""
        return self.wire.round_trip_s

    # Sending.

    def send_nowait(self, subject: str, payload: bytes) -> None:
        """Queue a message; it is written by the end of this loop iteration.

        Raises:
            MessageTooLargeError: the message exceeds the limit of the peer.
            ConnectionClosedError: the tunnel is closed or closing.
        """
        size = len(payload)
        # A character takes at most four bytes; `_check` checks the exact size.
        if size + 4 * len(subject) > self._fast_path_bytes_max:
            self._check(subject, payload)
        try:
            self._queue_request(0, subject, payload, 0, False)
        except UnicodeEncodeError:
            raise UsageError(f"subject {subject!r} cannot be encoded as UTF-8") from None
        self.messages_sent += 1
        self._queued_bytes += size + FRAME_BYTES
        if self._queued_bytes >= QUEUED_BYTES_MAX:
            self._flush()
        elif not self._flush_scheduled:
            self._schedule_flush()

    def _check(self, subject: str, payload: bytes) -> None:
        """Check the exact size of a message, and that the tunnel is open."""
        if not self.is_open:
            detail = f"the tunnel with {self.describe_peer()} is closed"
            raise ConnectionClosedError(detail, outcome=Outcome.NOT_SENT)
        validate_message(subject, payload)
        check_size(subject, payload, self.send_bytes_max)

    def _set_can_send(self, is_allowed: bool) -> None:
        self.can_send = is_allowed and self._is_writable
        fast_path_bytes_max = min(self.send_bytes_max, SUBJECT_BYTES_MAX, LARGE_BYTES - 1)
        self._fast_path_bytes_max = fast_path_bytes_max if is_allowed else _NOTHING

    # Receiving.

    def _on_events(self, events: list[ConnectionEvent], now: float) -> None:
        receive = self._receive
        # Events other than requests occur only when the tunnel opens or a goodbye arrives.
        if receive is None or self.wire.state is not ConnectionState.OPEN:
            self._handle_unusual(events, now)
            return
        self.messages_received += len(events)
        try:
            receive(events)  # type: ignore[arg-type]
        except (Exception, asyncio.CancelledError) as error:
            self._on_handler_error(error)

    def _handle_unusual(self, events: list[ConnectionEvent], now: float) -> None:
        if isinstance(events[0], ConnectionOpened):
            self._on_opened(now)
        requests = [event for event in events if type(event) is RequestFrame]
        if requests and self._receive is not None:
            self.messages_received += len(requests)
            self._call(self._receive, requests)
        for event in events:
            if isinstance(event, GoodbyeFrame):
                self._on_goodbye(event)

    def _on_handler_error(self, error: BaseException) -> None:
        """Close the tunnel because its handler raised; other connections are not affected.

        A CancelledError was raised by the handler itself: a callback cannot be cancelled.
        """
        if self.is_open or not isinstance(error, ConnectionClosedError):
            # A handler of a tunnel that just closed may still send: that is no failure.
            logger.error("%s closed: its handler failed", self, exc_info=error)
            self._context.counters.handlers_failed += 1
            self.close(f"{type(error).__name__} in the node")
        self._receive = None

    def _call(self, method: Callable[..., None], *args: object) -> None:
        try:
            method(*args)
        except (Exception, asyncio.CancelledError) as error:
            self._on_handler_error(error)

    # Opening.

    def _wire_config(self) -> WireConfig:
        config = self._context.wire_config()
        if self.role is ConnectionRole.SERVER:
            return config
        hello = msgspec.structs.replace(config.hello, is_tunnel=True)
        return msgspec.structs.replace(config, hello=hello)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._context.is_stopped or self._close_reason is not None:
            # The dial was cancelled meanwhile.
            self.abort()

    def adopt_connection(
        self, connection: PeerConnection, events: list[ConnectionEvent], now: float
    ) -> None:
        """Take over a server connection, with the events that it has just read."""
        self.adopt(connection)
        self._on_events(events, now)
        self._flush_and_rearm()

    def _on_opened(self, now: float) -> None:
        machine = self.wire
        assert machine.peer is not None
        self.peer = machine.peer
        self.send_bytes_max = machine.send_bytes_max
        self._queue_request = machine.queue_request
        if (error := self._wrong_peer_error()) is not None:
            self._close(str(error), code=error.code)
            return
        self._set_can_send(self.is_open)
        self._handler = self._accept_handler()
        if self._handler is None:
            return
        self._was_open = True
        self._receive = self._handler.on_messages
        if self.role is ConnectionRole.CLIENT:
            self._context.counters.connections_opened += 1
        if self.is_open:
            # The ping measures the round trip, and tells a client that its tunnel is accepted.
            self._ping(now)
        self.opened.set_result(None)

    def _accept_handler(self) -> TunnelHandler | None:
        """Return the handler of this tunnel, or None after rejecting it with a goodbye."""
        try:
            if self.peer_name is None:
                raise HandshakeRejectedError("tunnels are only for nodes that show a certificate")
            if self._accept is None:
                name = self._context.config.hello.name
                raise HandshakeRejectedError(f"node {name!r} takes no tunnels")
            return self._accept(self)
        except HandshakeRejectedError as rejection:
            self._is_rejected = True
            self._close(str(rejection), code=HandshakeRejectedError.code)
        except (Exception, asyncio.CancelledError) as error:
            self._on_handler_error(error)
        return None

    def _wrong_peer_error(self) -> WrongPeerError | None:
        names = () if self.wire.peer is None else self.wire.peer_names
        # Before its hello, the peer may still be the expected one.
        return wrong_peer_error(self._expected, names, self.describe_peer()) if names else None

    # Timers and backpressure.

    def _ping(self, now: float) -> None:
        """Send a ping: heartbeats are omitted, and measure nothing, while messages are sent."""
        self.wire.ping(now)
        self._flush()
        limits = self._context.limits
        self._ping_at = now + limits.heartbeat_interval_s if limits.has_heartbeats else NEVER

    def _own_deadline(self) -> float:
        # A ping that is due is sent when the write buffer has drained.
        return min(self._stall.deadline, self._ping_at if self._is_writable else NEVER)

    def _on_timer(self, now: float) -> None:
        is_aborted = self._abort_if_stalled(now, "nothing")
        if not is_aborted and now >= self._ping_at and self._is_writable:
            self._ping(now)

    def _on_writable(self, is_writable: bool) -> None:
        now = self._loop.time()
        if not is_writable:
            self.can_send = False
            self._watch_full_buffer()
            return
        self._stall.stop()
        self.wire.send_heartbeats()
        if now >= self._ping_at:
            self._ping(now)
        else:
            self._flush()
        self._set_timer_by(self._own_deadline())
        # The callbacks may have filled the write buffer again.
        if self.is_open and self._is_writable and self._handler is not None:
            self.can_send = True
            self._call(self._handler.on_writable)

    # Closing.

    def close(self, reason: str, linger_s: float = LINGER_S) -> None:
        """Send a goodbye; the socket closes when the peer has replied, or after `linger_s`.

        Nothing can be sent any more; messages that the peer has sent before are still received.
        """
        self._close(reason, linger_s=linger_s)

    def _close(self, reason: str, *, code: int = 0, linger_s: float = LINGER_S) -> None:
        self._stop_sending()
        if self.transport is None or self._close_reason is not None:
            super().close(reason, linger_s)
            return
        self.wire.goodbye(reason, code)
        if self.wire.state is not ConnectionState.DRAINING:
            super().close(reason, linger_s)
            return
        self._close_reason = reason
        # Closing the socket now would lose the goodbye if data of the peer is in flight.
        self._linger = self._loop.call_later(linger_s, self._on_linger_timeout)
        self._flush()

    def _stop_sending(self) -> None:
        self._set_can_send(False)
        self._ping_at = NEVER

    def eof_received(self) -> bool:
        # The loop closes the socket: messages sent from now on would not arrive.
        self._stop_sending()
        self.wire.close()
        return False

    def _on_goodbye(self, goodbye: GoodbyeFrame) -> None:
        self._stop_sending()
        transport = self.transport
        if self._close_reason is None:
            self._record_goodbye(goodbye)
            super().close("the peer said goodbye")
        elif transport is not None:
            # Both sides have sent a goodbye.
            self.wire.close()
            transport.close()

    def _on_connection_lost(self, exc: Exception | None, *, was_open: bool) -> None:
        self._stop_sending()
        self._receive = None
        self._on_closed(self, None)
        counters = self._context.counters
        counters.tunnel_messages_sent += self.messages_sent
        counters.tunnel_messages_received += self.messages_received
        loss = self._record_loss(exc, self._close_reason if self._peer_reason is None else None)
        if not self.opened.done():
            self.opened.set_result(self._wrong_peer_error() or loss.error())
        user, self._handler = self._handler, None
        if user is not None:
            self._call(user.on_lost, loss.describe())

    def _count_bytes(self) -> None:
        # The tunnel keeps its numbers: the statistics no longer read them.
        self._context.counters.bytes_sent += self.bytes_sent
        self._context.counters.bytes_received += self.bytes_received

    def drain(self) -> None:
        """Close because the node stops, with its grace period to write queued messages."""
        self.close("the node is stopping", max(self._context.limits.stop_grace_s, LINGER_S))

    async def wait_finished(self) -> None:
        """Return when the socket is closed."""
        await self.wait_closed()

    def abort(self) -> None:
        """Abort the socket."""
        if self.transport is not None:
            self.transport.abort()

    def __repr__(self) -> str:
        state = self.wire.state.value if self.transport is not None else "closed"
        # There is no peer before the connection.
        peer = self.describe_peer() if self.remote != NOT_CONNECTED else NOT_CONNECTED
        return f"<Tunnel {peer} {state}>"
