"""A tunnel: a connection on which both sides post messages at any time, and nobody answers.

What arrives in one read is handed over in one call, and what is posted within a turn of the loop
leaves in one write. Nothing is awaited: a user that posts too much sees `can_send` turn False.
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
    PeerTimeoutError,
    UsageError,
    WrongPeerError,
)
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.net.connections.connection import (
    FRAME_BYTES,
    LARGE_BYTES,
    LINGER_S,
    NOT_CONNECTED,
    QUEUED_BYTES_MAX,
    PeerConnection,
)
from postroad.net.connections.disconnect import DisconnectReason, WriteStallDetector, is_rejection
from postroad.net.context import ConnectionContext, logger
from postroad.net.requests import check_size, validate_message
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
    """Who has a tunnel. All of it is called by the event loop, so nothing may block."""

    def on_messages(self, requests: list[RequestFrame]) -> None:
        """Messages arrived, in the order in which they were posted; called once for each read."""

    def on_writable(self) -> None:
        """The socket has room again: `can_send` is True from now on."""

    def on_lost(self, reason: str) -> None:
        """The tunnel is gone. Told exactly once, and nothing is called after it."""


# Nothing is this small: what a tunnel takes that is not open.
_NOTHING = -1


TunnelAcceptor: TypeAlias = "Callable[[Tunnel], TunnelHandler]"
"""Gives the user of a new tunnel, or raises HandshakeRejectedError with a text for the peer."""


class Tunnel(PeerConnection):
    """Either end of a tunnel."""

    __slots__ = (
        "_accept",
        "_easy_bytes_max",
        "_encode",
        "_expected",
        "_forget",
        "_handler",
        "_is_rejected",
        "_peer_reason",
        "_ping_at",
        "_receive",
        "_stall",
        "_was_open",
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
        forget: Callable[[Tunnel, None], object],
        expected: str | None = None,
    ) -> None:
        super().__init__(context, loop)
        self.role = role
        # Whether posting is welcome now: the tunnel is open and the socket takes more.
        self.can_send = False
        # Who the other end is, and the largest payload and subject it takes; known once open.
        self.peer: HelloFrame
        self.send_bytes_max = 0
        self.messages_sent = 0
        self.messages_received = 0
        # Ends with None once a user has the tunnel, or with what prevented it.
        self.opened: asyncio.Future[ConnectionClosedError | None] = loop.create_future()
        # None refuses.
        self._accept = accept
        # Takes the tunnel out of the list it is in.
        self._forget = forget
        # The name the peer must have, if any.
        self._expected = expected
        self._handler: TunnelHandler | None = None
        # The user's, from the opening until there is nothing to be received any more.
        self._receive: Callable[[list[RequestFrame]], None] | None = None
        # Messages up to this size need no closer look; none do unless the tunnel is open.
        self._easy_bytes_max = _NOTHING
        # Set once the tunnel is open.
        self._encode: Callable[[list[bytes], int, str, bytes, int, bool], None]
        self._ping_at = NEVER
        self._stall = WriteStallDetector(context.limits.frame_timeout_s)
        self._was_open = False
        # Whether one of the two wants nothing to do with the other.
        self._is_rejected = False
        # What the peer gave as its reason to close.
        self._peer_reason: str | None = None

    @property
    def round_trip_s(self) -> float | None:
        """Last measured time to the peer and back, behind what was queued; None before that."""
        return self.wire.round_trip_s

    # Posting.

    def send_nowait(self, subject: str, payload: bytes) -> None:
        """Queue a message, which leaves at the end of this turn of the loop at the latest.

        Raises:
            MessageTooLargeError: the peer does not take so much.
            ConnectionClosedError: the tunnel is closed, or about to be.
        """
        size = len(payload)
        # No character takes more than four bytes; the exact size is checked thoroughly.
        if size + 4 * len(subject) > self._easy_bytes_max:
            self._check(subject, payload)
        try:
            self._encode(self._out, 0, subject, payload, 0, False)
        except UnicodeEncodeError:
            raise UsageError(f"subject {subject!r} cannot be encoded as UTF-8") from None
        self.messages_sent += 1
        self._queued_bytes += size + FRAME_BYTES
        if self._queued_bytes >= QUEUED_BYTES_MAX:
            self._flush()
        elif not self._flush_scheduled:
            self._schedule_flush()

    def _check(self, subject: str, payload: bytes) -> None:
        """Look closer at a message that is not small, or a tunnel that is not open."""
        if not self.is_open:
            detail = f"the tunnel with {self.describe_peer()} is closed"
            raise ConnectionClosedError(detail, outcome=Outcome.NOT_SENT)
        validate_message(subject, payload)
        check_size(subject, payload, self.send_bytes_max)
        self._has_large |= len(payload) >= LARGE_BYTES

    def _set_can_send(self, is_allowed: bool) -> None:
        self.can_send = is_allowed and self._is_writable
        easy_bytes_max = min(self.send_bytes_max, SUBJECT_BYTES_MAX, LARGE_BYTES - 1)
        self._easy_bytes_max = easy_bytes_max if is_allowed else _NOTHING

    # Receiving.

    def _on_events(self, events: list[ConnectionEvent], now: float) -> None:
        receive = self._receive
        # All that is no request goes with another phase: the opening, and a goodbye.
        if receive is None or self.wire.phase is not ConnectionState.OPEN:
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
        """What a user does wrong ends its tunnel and nothing else.

        A CancelledError is one it raised itself: nobody can cancel a callback.
        """
        if self.is_open or not isinstance(error, ConnectionClosedError):
            # Else it could not know yet that nothing can be posted any more.
            logger.error("closing %s, because its user failed", self, exc_info=error)
            self._context.counters.handlers_failed += 1
            self.close(f"{type(error).__name__} in the node")
        self._receive = None

    def _call(self, method: Callable[..., None], *args: object) -> None:
        try:
            method(*args)
        except (Exception, asyncio.CancelledError) as error:
            self._on_handler_error(error)

    # The beginning.

    def _wire_config(self) -> WireConfig:
        config = self._context.wire_config()
        if self.role is ConnectionRole.SERVER:
            return config
        hello = msgspec.structs.replace(config.hello, is_tunnel=True)
        return msgspec.structs.replace(config, hello=hello)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._context.is_stopped or self._close_reason is not None:
            # Whoever wanted it has given up meanwhile.
            self.abort()

    def adopt_connection(
        self, connection: PeerConnection, events: list[ConnectionEvent], now: float
    ) -> None:
        """Take the connection of an accepted connection over, with what it has just read."""
        self.adopt(connection)
        self._on_events(events, now)
        self._flush_and_rearm()

    def _on_opened(self, now: float) -> None:
        machine = self.wire
        assert machine.peer is not None
        self.peer = machine.peer
        self.send_bytes_max = machine.send_bytes_max
        self._encode = machine.codec.encode_request
        if self._is_wrong_peer:
            self._close(self._describe_wrong_peer(), code=WrongPeerError.code)
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
            # Besides measuring, it tells a client that its tunnel is taken.
            self._ping(now)
        self.opened.set_result(None)

    def _accept_handler(self) -> TunnelHandler | None:
        """Who has this tunnel; None if nobody wants it, which the peer is told."""
        try:
            if self.peer_name is None:
                raise HandshakeRejectedError("tunnels are only for nodes that show a certificate")
            if self._accept is None:
                name = self._context.config.hello.name
                raise HandshakeRejectedError(f"node {name!r} takes no tunnels")
            return self._accept(self)
        except HandshakeRejectedError as refusal:
            self._is_rejected = True
            self._close(str(refusal), code=HandshakeRejectedError.code)
        except (Exception, asyncio.CancelledError) as error:
            self._on_handler_error(error)
        return None

    @property
    def _is_wrong_peer(self) -> bool:
        peer = self.wire.peer
        return peer is not None and self._expected not in (None, peer.name)

    def _describe_wrong_peer(self) -> str:
        return f"expected node {self._expected!r}, but {self.describe_peer()} answers there"

    # Time and back-pressure.

    def _ping(self, now: float) -> None:
        """Ping: heartbeats alone measure nothing while there is something to write."""
        self.wire.ping(now)
        self._flush()
        limits = self._context.limits
        self._ping_at = now + limits.heartbeat_interval_s if limits.has_heartbeats else NEVER

    def _own_deadline(self) -> float:
        # A ping that is due leaves when the socket takes it.
        return min(self._stall.deadline, self._ping_at if self._is_writable else NEVER)

    def _extend_deadlines(self, stalled_s: float, now: float) -> None:
        super()._extend_deadlines(stalled_s, now)
        self._stall.extend_until(now + stalled_s)

    def _on_timer(self, now: float) -> None:
        if now >= self._stall.deadline and self._stall.is_stalled(self._bytes_flushed(), now):
            allowed = self._context.limits.frame_timeout_s
            self._fail(PeerTimeoutError(f"the peer read nothing for {allowed:.3g} s"))
            self.abort()
        elif now >= self._ping_at and self._is_writable:
            self._ping(now)

    def _on_writable(self, is_writable: bool) -> None:
        now = self._loop.time()
        if not is_writable:
            self.can_send = False
            self._stall.start(self._bytes_flushed(), now)
            self._set_timer_by(self._own_deadline())
            return
        self._stall.stop()
        self.wire.flush_held_pong()
        if now >= self._ping_at:
            self._ping(now)
        elif self._out:
            self._flush()
        self._set_timer_by(self._own_deadline())
        self._resume_sending()

    def _resume_sending(self) -> None:
        # What was just written may have filled the socket again.
        if self.is_open and self._is_writable and self._handler is not None:
            self.can_send = True
            self._call(self._handler.on_writable)

    # The end.

    def close(self, reason: str, linger_s: float = LINGER_S) -> None:
        """Say goodbye; the socket closes when the peer has heard it, or after `linger_s`.

        Nothing can be posted any more; what the peer had posted before is still received.
        """
        self._close(reason, linger_s=linger_s)

    def _close(self, reason: str, *, code: int = 0, linger_s: float = LINGER_S) -> None:
        self._stop_sending()
        if self.transport is None or self._close_reason is not None:
            super().close(reason, linger_s)
            return
        self.wire.goodbye(reason, code)
        if self.wire.phase is not ConnectionState.DRAINING:
            super().close(reason, linger_s)
            return
        self._close_reason = reason
        # Closing the socket now would lose the goodbye if the peer had something under way.
        self._linger = self._loop.call_later(linger_s, self._on_linger_timeout)
        self._flush()

    def _stop_sending(self) -> None:
        self._set_can_send(False)
        self._ping_at = NEVER

    def eof_received(self) -> bool:
        # The loop closes the socket: nothing that is posted from now on would arrive.
        self._stop_sending()
        self.wire.close()
        return False

    def _on_goodbye(self, goodbye: GoodbyeFrame) -> None:
        self._stop_sending()
        transport = self.transport
        if self._close_reason is None:
            self._peer_reason = goodbye.reason
            self._is_rejected = is_rejection(goodbye)
            super().close("the peer said goodbye")
        elif transport is not None:
            # Both have said it.
            self.wire.close()
            transport.close()

    def _on_connection_lost(self, exc: Exception | None, *, was_open: bool) -> None:
        self._stop_sending()
        self._receive = None
        self._forget(self, None)
        counters = self._context.counters
        counters.tunnel_messages_sent += self.messages_sent
        counters.tunnel_messages_received += self.messages_received
        loss = self._describe_loss(exc)
        if self._was_open and loss.close_reason is None and loss.peer_reason is None:
            counters.connections_lost += 1
        if not self.opened.done():
            self.opened.set_result(self._error_of(loss))
        user, self._handler = self._handler, None
        if user is not None:
            self._call(user.on_lost, loss.describe())

    def _describe_loss(self, exc: Exception | None) -> DisconnectReason:
        return DisconnectReason(
            wire=self.wire,
            exc=exc,
            was_open=self._was_open,
            close_reason=self._close_reason if self._peer_reason is None else None,
            peer_reason=self._peer_reason,
            is_rejected=self._is_rejected,
        )

    def _error_of(self, loss: DisconnectReason) -> ConnectionClosedError:
        if self._is_wrong_peer:
            return WrongPeerError(self._describe_wrong_peer())
        return loss.error()

    def _count_bytes(self) -> None:
        # They stay with the tunnel, which the statistics no longer look at.
        self._context.counters.bytes_sent += self.bytes_sent
        self._context.counters.bytes_received += self.bytes_received

    def drain(self) -> None:
        """The node is stopping: close, but take the time there is to write what is queued."""
        self.close("the node is stopping", max(self._context.limits.stop_grace_s, LINGER_S))

    async def wait_finished(self) -> None:
        """Return once the socket is gone."""
        await self.wait_closed()

    def abort(self) -> None:
        """Cut it off."""
        if self.transport is not None:
            self.transport.abort()

    def __repr__(self) -> str:
        state = self.wire.phase.value if self.transport is not None else "closed"
        # Nothing can be told of a peer before there is one.
        peer = self.describe_peer() if self.remote != NOT_CONNECTED else NOT_CONNECTED
        return f"<Tunnel {peer} {state}>"
