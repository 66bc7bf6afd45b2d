"""One TCP connection: an asyncio protocol around the state machine of `wire`.

After every callback: write the frames that the machine has queued, check its failure, and set the
one timer. Subclasses handle the events of a client, a server or a tunnel.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import cast

from postroad.core import Address
from postroad.core.errors import FrameTooLargeError, PeerTimeoutError, RemoteProtocolError
from postroad.net.connections.disconnect import (
    LINGER_S,
    DisconnectReason,
    LargeFrameProtocol,
    WriteStallDetector,
    describe_remote,
    enable_keepalive,
    is_rejection,
    remote_host,
)
from postroad.net.context import ConnectionContext
from postroad.net.tls import certificate_names
from postroad.wire import (
    JOIN_BYTES_MAX,
    NEVER,
    ConnectionEvent,
    ConnectionRole,
    ConnectionState,
    FrameIgnored,
    GoodbyeFrame,
    Share,
    WireConfig,
    WireConnection,
)

# Queued bytes that are written before the loop iteration ends: about a hundred small messages save
# nearly all system calls, and the peer can start on them while more are encoded.
QUEUED_BYTES_MAX = 16 * 1024
# The size of a message beside its payload, so that empty messages count too.
FRAME_BYTES = 64
# The buffer of a closed connection whose socket still reads.
_IDLE_READ_BYTES = 4 * 1024
# Payloads from this size on are written without joining them to other frames.
LARGE_BYTES = JOIN_BYTES_MAX
# Timers closer than this share one wake-up.
_TIMER_STEP_S = 0.001
# A timer that is later than this means that the process was stalled and read nothing meanwhile.
_STALL_THRESHOLD_S = 0.05
# Deadlines are extended at most once in so many stalls, so that they pass in a process that is
# always late too.
_EXTENSION_SPACING = 3
# How often a connection that waits for memory checks the progress of those that hold it.
_CAPACITY_CHECK_S = 1.0
# The remote address of a connection that is not established yet.
NOT_CONNECTED = "not connected"


class PeerConnection(asyncio.Protocol):
    """Base of client connections, server connections and tunnels."""

    __slots__ = (
        "_capacity_timer",
        "_close_reason",
        "_closed",
        "_context",
        "_extended_at",
        "_flush_scheduled",
        "_is_rejected",
        "_is_writable",
        "_last_batch",
        "_linger",
        "_loop",
        "_peer_reason",
        "_queued_bytes",
        "_reads",
        "_share",
        "_stall",
        "_timer",
        "_timer_at",
        "_was_open",
        "bytes_received",
        "bytes_sent",
        "remote",
        "transport",
        "wire",
    )

    role: ConnectionRole
    # Whether it has something to do in time when its socket is gone.
    outlives_socket = False

    def __init__(self, context: ConnectionContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        # Made by connection_made, which knows the peer's certificate.
        self.wire: WireConnection
        # Added to the counters of the service when the connection is lost.
        self.bytes_sent = 0
        self.bytes_received = 0
        # Set by connection_made(); None before and after the connection.
        self.transport: asyncio.Transport | None = None
        # The remote address, for texts.
        self.remote = NOT_CONNECTED
        # Why this node closed the connection, if it did.
        self._close_reason: str | None = None
        # Whether it was open, the reason in the goodbye of the peer, and whether one of the two
        # nodes has rejected the other for good; clients and tunnels report them when it is lost.
        self._was_open = False
        self._peer_reason: str | None = None
        self._is_rejected = False
        self._closed: asyncio.Future[None] = loop.create_future()
        self._flush_scheduled = False
        # Frames in the last write: one means that the connection is nearly idle.
        self._last_batch = 1
        # Bytes queued since the last write.
        self._queued_bytes = 0
        self._is_writable = True
        # Started by servers and tunnels while the write buffer is full.
        self._stall = WriteStallDetector(context.limits.frame_timeout_s)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        # When deadlines were last extended because this process was stalled.
        self._extended_at = -NEVER
        self._linger: asyncio.TimerHandle | None = None
        self._reads = True
        # The memory of its incomplete frames; the timer is set while it waits for more.
        self._share: Share
        self._capacity_timer: asyncio.TimerHandle | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because transports of other loops need not derive from asyncio's.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        self.remote = describe_remote(transport)
        names = certificate_names(transport)
        # Without a certificate the name is only a claim, so the host counts.
        peer = ", ".join(sorted(names)) if names else remote_host(transport)
        self._share = self._context.unfinished.share(peer, self)
        self.wire = WireConnection(
            self.role,
            self._wire_config(),
            self._loop.time(),
            next_id=self._context.next_id,
            certificate_names=names,
            share=self._share,
        )
        transport.set_write_buffer_limits(high=self._context.limits.write_buffer_bytes_max)
        enable_keepalive(transport, self._context.limits)
        self._flush_and_rearm()

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        machine = self.wire
        events = machine.receive_data(data, now)
        self.bytes_received += len(data)
        if machine.wants_buffer:
            self._switch_protocol(LargeFrameProtocol(self))
        if events:
            self._on_events(events, now)
        if machine.outgoing:
            self._flush()
        if machine.needs_attention:
            self._flush_and_rearm()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self.is_open
        self.wire.close()
        self.transport = None
        self._is_writable = False
        for timer in (self._timer, self._linger, self._capacity_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger = self._capacity_timer = None
        self._count_bytes()
        self._on_connection_lost(exc, was_open=was_open)
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._is_writable = self.wire.is_writable = False
        self._on_writable(False)

    def resume_writing(self) -> None:
        self._is_writable = self.wire.is_writable = True
        self._on_writable(True)

    # For subclasses.

    @abstractmethod
    def _on_events(self, events: list[ConnectionEvent], now: float) -> None:
        """Handle the events decoded from the bytes that arrived."""

    @abstractmethod
    def _on_connection_lost(self, exc: Exception | None, *, was_open: bool) -> None:
        """Release what depends on the connection, which is lost."""

    @abstractmethod
    def _on_writable(self, is_writable: bool) -> None:
        """Handle that the write buffer is full, or has drained."""

    def _wire_config(self) -> WireConfig:
        """Return the configuration of the state machine."""
        return self._context.wire_config()

    def _count_bytes(self) -> None:
        """Add the bytes of this connection to the totals."""
        self._context.counters.bytes_sent += self.bytes_sent
        self._context.counters.bytes_received += self.bytes_received
        self.bytes_sent = self.bytes_received = 0

    def _on_timer(self, now: float) -> None:
        """Handle deadlines of the subclass; called before the tick of the state machine."""

    def _own_deadline(self) -> float:
        """Return when `_on_timer` must be called."""
        return self._stall.deadline

    def _extend_deadlines(self, stalled_s: float, now: float) -> None:
        """Extend deadlines of the peer by the time this process was stalled."""
        self.wire.extend_deadlines(stalled_s, now)
        self._stall.extend_until(now + stalled_s)

    # Large frames.

    def receive_buffer(self) -> memoryview:
        """Return the buffer for the next bytes of a large frame."""
        buffer = self.wire.receive_buffer()
        # A closed connection reads until its socket is closed, and drops the bytes.
        return memoryview(bytearray(_IDLE_READ_BYTES)) if buffer is None else buffer

    def buffer_updated(self, size: int) -> None:
        """Handle that the loop has read so many bytes into the receive buffer."""
        now = self._loop.time()
        events = self.wire.buffer_updated(size, now)
        self.bytes_received += size
        if not self.wire.wants_buffer:
            self._switch_protocol(self)
        if events:
            self._on_events(events, now)
        self._flush_and_rearm()

    def _switch_protocol(self, reader: asyncio.BaseProtocol) -> None:
        """Let another protocol read; loops choose how to read when they resume reading."""
        transport = self.transport
        if transport is None:
            return
        is_reading = transport.is_reading()
        if is_reading:
            transport.pause_reading()
        transport.set_protocol(reader)
        if is_reading:
            transport.resume_reading()

    def _schedule_capacity_check(self) -> None:
        self._capacity_timer = self._loop.call_later(_CAPACITY_CHECK_S, self._check_capacity)

    def _check_capacity(self) -> None:
        assert self._capacity_timer is not None
        now = self._loop.time()
        late_s = now - self._capacity_timer.when()
        if not self._share.is_waiting:
            # The frame was completed by bytes read before the pause.
            self.on_capacity()
            return
        self._schedule_capacity_check()
        if late_s < _CAPACITY_CHECK_S / 2:
            # A later timer means that this process was stalled, not the other connections.
            self._share.evict_stalled(now)

    def on_capacity(self) -> None:
        """Resume reading: there is memory for the large frame."""
        if self._capacity_timer is not None:
            self._capacity_timer.cancel()
            self._capacity_timer = None
        self.wire.resume_large_frame()
        if self.wire.wants_buffer:
            self._switch_protocol(LargeFrameProtocol(self))
        self._update_backpressure()

    def abort_frame(self, reason: str) -> None:
        """Fail this connection, because others need the memory of its incomplete frame."""
        self.wire.reject(FrameTooLargeError(reason))
        self._flush_and_rearm()

    def _update_backpressure(self) -> None:
        """Read from the peer only while there is memory for its frames."""
        self._read(self._capacity_timer is None)

    def _read(self, should_read: bool) -> None:
        if should_read == self._reads or self.transport is None or self._linger is not None:
            return
        self._reads = should_read
        if should_read:
            self.wire.resume_reading(self._loop.time())
            self.transport.resume_reading()
        else:
            self.wire.pause_reading()
            self.transport.pause_reading()

    def adopt(self, connection: PeerConnection) -> None:
        """Take over the socket and state machine of another connection, which ends."""
        self.transport, connection.transport = connection.transport, None
        self.wire, self.remote = connection.wire, connection.remote
        self._share = connection._share
        self._share.owner = self
        self.bytes_sent, self.bytes_received = connection.bytes_sent, connection.bytes_received
        self._is_writable = connection._is_writable
        if connection._timer is not None:
            connection._timer.cancel()
            connection._timer = None
        self._switch_protocol(LargeFrameProtocol(self) if self.wire.wants_buffer else self)

    # Common to all connections.

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self.wire.state is ConnectionState.OPEN and self.transport is not None

    @property
    def peer_name(self) -> str | None:
        """The node name of the peer, or None if it is unknown."""
        return self.wire.peer_name

    def describe_peer(self, address: Address | None = None) -> str:
        """Return address and name of the peer, for texts."""
        place = str(address) if address is not None else self.remote
        return f"{place} ({self.peer_name})" if self.peer_name else place

    def close(self, reason: str, linger_s: float = LINGER_S) -> None:
        """Write the queued frames, then close; abort after `linger_s` if the peer does not read."""
        if self._close_reason is None:
            self._close_reason = reason
        transport = self.transport
        if transport is None or self._linger is not None:
            return
        self._flush()
        self.wire.close()
        self._linger = self._loop.call_later(linger_s, self._on_linger_timeout)
        transport.close()

    def _on_linger_timeout(self) -> None:
        transport = self.transport
        if transport is None:
            return
        unwritten = transport.get_write_buffer_size()
        if unwritten:
            self._context.warn(
                "unwritten",
                "%d bytes for %s dropped: the peer does not read",
                unwritten,
                self.remote,
            )
        transport.abort()

    async def wait_closed(self) -> None:
        """Return when the socket is closed."""
        await asyncio.shield(self._closed)

    def _fail(self, error: RemoteProtocolError) -> None:
        """Log and count a protocol violation of the peer, and close this connection."""
        if self._close_reason is not None:
            return
        kind = type(error).__name__
        self._context.counters.protocol_errors += 1
        counts = self._context.protocol_errors_by_kind
        counts[kind] = counts.get(kind, 0) + 1
        self._context.warn(
            f"{self.role.value} {kind}",
            "connection %s %s closed: %s: %s",
            "to" if self.role is ConnectionRole.CLIENT else "from",
            self.remote,
            kind,
            error,
        )
        self.close(f"{kind}: {error}")

    def _watch_full_buffer(self) -> None:
        """Expect the write buffer, which is full, to shrink in time."""
        self._stall.start(self._bytes_flushed(), self._loop.time())
        self._set_timer_by(self._stall.deadline)

    def _abort_if_stalled(self, now: float, unread: str) -> bool:
        """Abort the connection if the full write buffer does not shrink."""
        if self.transport is None or not self._stall.is_stalled(self._bytes_flushed(), now):
            return False
        allowed_s = self._context.limits.frame_timeout_s
        self._fail(PeerTimeoutError(f"the peer read {unread} for {allowed_s:.3g} s"))
        self.transport.abort()
        return True

    def _record_goodbye(self, goodbye: GoodbyeFrame) -> None:
        self._peer_reason = goodbye.reason
        self._is_rejected = is_rejection(goodbye)

    def _record_loss(self, exc: Exception | None, close_reason: str | None) -> DisconnectReason:
        """Return why the connection is lost; count it unless one of the sides closed it."""
        if self._was_open and close_reason is None and self._peer_reason is None:
            self._context.counters.connections_lost += 1
        return DisconnectReason(
            wire=self.wire,
            exc=exc,
            was_open=self._was_open,
            close_reason=close_reason,
            peer_reason=self._peer_reason,
            is_rejected=self._is_rejected,
        )

    def _log_ignored_frame(self, event: FrameIgnored) -> None:
        self._context.counters.frames_ignored += 1
        self._context.warn("ignored", "%s frame from %s ignored", event.kind, self.remote)

    def _schedule_flush(self) -> None:
        """Flush at the end of this loop iteration, with all frames queued until then."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write all queued frames."""
        self._flush_scheduled = False
        queued_bytes, self._queued_bytes = self._queued_bytes, 0
        transport = self.transport
        if transport is None:
            return
        queued = self.wire.data_to_send(self._loop.time())
        self._last_batch = len(queued)
        if queued_bytes >= LARGE_BYTES:
            # Joining would copy a large payload.
            for piece in queued:
                self.bytes_sent += len(piece)
                transport.write(piece)
        elif queued:
            data = queued[0] if len(queued) == 1 else b"".join(queued)
            self.bytes_sent += len(data)
            transport.write(data)

    def _flush_and_rearm(self) -> None:
        """Write queued frames, check for a failure, set the timer."""
        if self.wire.outgoing:
            self._flush()
        self.wire.needs_attention = False
        if self.wire.failure is not None:
            self._fail(self.wire.failure)
        elif self._share.is_waiting and self._capacity_timer is None:
            # Pause reading until there is memory for the large frame that has started.
            self._schedule_capacity_check()
            self._update_backpressure()
        self._set_timer(min(self.wire.deadline(), self._own_deadline()))

    def _bytes_flushed(self) -> int:
        """Return the bytes that were written and have left the write buffer."""
        assert self.transport is not None
        return self.bytes_sent - self.transport.get_write_buffer_size()

    def _set_timer_by(self, when: float) -> None:
        """Set the timer to this time, unless it fires earlier."""
        if when < self._timer_at:
            self._set_timer(when)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = when
        if when < NEVER and (self.transport is not None or self.outlives_socket):
            self._timer_at = max(when, self._loop.time() + _TIMER_STEP_S)
            self._timer = self._loop.call_at(self._timer_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        late_s = now - self._timer_at
        if late_s > _STALL_THRESHOLD_S and now - self._extended_at > _EXTENSION_SPACING * late_s:
            self._extended_at = now
            self._extend_deadlines(late_s, now)
        try:
            self._on_timer(now)
            if self.wire.deadline() <= now:
                self.wire.tick(now)
        finally:
            self._flush_and_rearm()
