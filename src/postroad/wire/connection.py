"""One connection as a sans-I/O state machine: bytes and time in, events and bytes out.

The owner of the socket calls `receive_data` with the bytes that arrived and `tick` when `deadline`
has come. After each call it writes what `data_to_send` returns, if `outgoing` is not empty, and, if
`needs_attention` is set, checks `failure` and `deadline`.

No method raises because of what a peer sent: a breach of the protocol sets `failure`, queues the
frames that report the breach to the peer, and closes the machine (docs/wire-protocol.md, 4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from postroad.core.errors import PeerTimeoutError, RemoteProtocolError, UnexpectedFrameError
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.core.names import Address
from postroad.core.timing import NEVER
from postroad.core.tracing import SpanContext
from postroad.wire.codecs import TRACE_BYTES_MAX, Codec, Version3Codec
from postroad.wire.connection_setup import ConnectionSetup, WireConfig, make_codec, make_heartbeats
from postroad.wire.frame_reader import FrameReader
from postroad.wire.frame_rules import (
    AFTER_HELLO,
    CONNECTING,
    ConnectionState,
    FrameAction,
    frame_action,
    transition,
)
from postroad.wire.frames import (
    CancelFrame,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    Frame,
    FrameIgnored,
    GoodbyeFrame,
    HelloFrame,
    ProofFrame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from postroad.wire.heartbeats import NextId, PingHeartbeats
from postroad.wire.hello import check_tunnel_hello
from postroad.wire.unfinished_frames import Share

# Frame types that `receive_data` passes on unchecked while a connection is open.
_NONE: frozenset[type] = frozenset()
_REQUESTS = frozenset({RequestFrame})
_REPLIES = frozenset({ReplyFrame})


class WireConnection:
    """State machine of either side of a connection, in any profile and version."""

    __slots__ = (
        "_codec",
        "_config",
        "_fast_path_frames",
        "_handshake_deadline",
        "_heartbeats",
        "_last_read",
        "_last_write",
        "_reader",
        "_reads_paused",
        "_setup",
        "_share",
        "_ticked_at",
        "certificate_names",
        "failure",
        "is_tunnel",
        "is_writable",
        "needs_attention",
        "outgoing",
        "peer",
        "queue_reply",
        "queue_request",
        "role",
        "send_bytes_max",
        "state",
        "version",
        "wants_buffer",
    )

    def __init__(
        self,
        role: ConnectionRole,
        config: WireConfig,
        now: float,
        *,
        next_id: NextId,
        certificate_names: Collection[str] | None = None,
        share: Share | None = None,
    ) -> None:
        self.role = role
        # Changed as `transition` allows.
        self.state = ConnectionState.HANDSHAKE
        # The negotiated version, 0 until then.
        self.version = 0
        # Set when `failure` is set or `deadline` moves forward; the owner of the socket resets it.
        self.needs_attention = False
        # The breach of the protocol that closed the connection, or None.
        self.failure: RemoteProtocolError | None = None
        # The verified hello of the peer (version 3 only).
        self.peer: HelloFrame | None = None
        # Whether both sides send requests and neither replies (3.6); set with `peer`.
        self.is_tunnel = False
        # Largest payload and subject that the peer accepts.
        self.send_bytes_max = config.limits.frame_bytes_max
        self._config = config
        # Names in the certificate of the peer, None without one.
        self.certificate_names = certificate_names
        self._setup = ConnectionSetup(role, config, certificate_names)
        self._handshake_deadline = now + config.limits.handshake_timeout_s
        # Queued bytes, which `data_to_send` takes.
        self.outgoing: list[bytes] = []
        # Encoders of the negotiated version, bound to the queue: a connection calls one of them for
        # every message. `request` and `reply` handle what these cannot.
        self.queue_request: Callable[[int, str, bytes, int, bool], None]
        self.queue_reply: Callable[[int, int, bytes, int, bool], None]
        self._share = share
        # The codec of the newest version until a version is negotiated, then the final one.
        self._use_codec(make_codec(config, config.profile.versions[-1]))
        self._heartbeats = make_heartbeats(config, role, next_id)
        # The frame type that makes up nearly all traffic to this side; empty unless the connection
        # is open.
        self._fast_path_frames = _NONE
        # Whether a large frame has started, whose bytes should be read into `receive_buffer`.
        self.wants_buffer = False
        self._last_read = self._last_write = self._ticked_at = now
        self._reads_paused = False
        # Set by the owner of the socket: False while its write buffer is full.
        self.is_writable = True
        if role is ConnectionRole.CLIENT:
            self.outgoing.append(self._setup.handshake.initial_bytes())

    @property
    def offered_version(self) -> int:
        """The version that the peer offered or answered, 0 until then."""
        return self._setup.handshake.offered

    @property
    def sender(self) -> Address | None:
        """The address the peer advertises, None until it has arrived."""
        return self._codec.sender

    @property
    def peer_name(self) -> str | None:
        """The node name of the peer, None if unknown.

        With TLS it is a name in the certificate of the peer: in version 3 the one in its hello, in
        older versions the first. Without TLS it is the unverified name in the hello.
        """
        names = self.certificate_names
        if names is None and self._config.is_secure:
            return None
        if self.peer is not None:
            return self.peer.name
        return next(iter(names), None) if names is not None else None

    @property
    def peer_names(self) -> Collection[str] | None:
        """The names that the peer has by its hello or its certificate, None if unknown."""
        return self.certificate_names if self.peer is None else (self.peer.name,)

    @property
    def round_trip_s(self) -> float | None:
        """The last measured round trip of a ping (version 3), or None."""
        return self._heartbeats.round_trip_s

    # Input.

    def receive_data(self, data: bytes, now: float) -> list[ConnectionEvent]:
        """Decode bytes from the peer; return the resulting events in order."""
        self._last_read = now
        if not self._fast_path_frames:
            return self._receive_checked(data, now)
        reader = self._reader
        frames = reader.feed(data)
        if (
            frames
            and reader.is_fast_path
            and self._fast_path_frames.issuperset(map(type, frames))
            and not self._heartbeats.concerns(frames)
        ):
            reader.last_frame = now
            self.wants_buffer = False
            return frames  # type: ignore[return-value]
        return self._process_frames(frames, [], now)

    def _receive_checked(self, data: bytes, now: float) -> list[ConnectionEvent]:
        """Decode bytes and check every frame against the rules of the current state."""
        events: list[ConnectionEvent] = []
        try:
            if self.state is ConnectionState.HANDSHAKE:
                data = self._advance_handshake(data, events, now)
        except RemoteProtocolError as error:
            self.reject(error)
        if not data or self.state is ConnectionState.CLOSED:
            return events
        frames = self._reader.feed(data)
        self._process_frames(frames, events, now)
        while frames and self._reader.rest and self.state in AFTER_HELLO:
            # The codec stops after a hello or a proof: the next bytes may be compressed (3.4).
            frames = self._reader.feed(b"")
            self._process_frames(frames, events, now)
        return events

    def receive_buffer(self) -> memoryview | None:
        """Return the buffer for the next bytes while `wants_buffer` is set, else None."""
        return self._reader.receive_buffer() if self.state is not ConnectionState.CLOSED else None

    def buffer_updated(self, size: int, now: float) -> list[ConnectionEvent]:
        """Like `receive_data`, for `size` bytes that were read into `receive_buffer`."""
        if self.state is ConnectionState.CLOSED:
            return []
        self._last_read = now
        return self._process_frames(self._reader.buffer_filled(size), [], now)

    def _process_frames(
        self, frames: list[Frame], events: list[ConnectionEvent], now: float
    ) -> list[ConnectionEvent]:
        """Process decoded frames and the state of the reader after them."""
        if frames:
            self._reader.last_frame = now
        try:
            for frame in frames:
                self._process_frame(frame, events, now)
        except RemoteProtocolError as error:
            self.reject(error)
        if self._heartbeats.outgoing:
            self.send_heartbeats()
        reader = self._reader
        if reader.is_fast_path:
            self.wants_buffer = False
            return events
        if reader.failure is not None and self.failure is None:
            self.reject(reader.failure)
        self.wants_buffer = reader.large is not None and self.failure is None
        if reader.share.is_waiting:
            self.needs_attention = True
        return events

    def _advance_handshake(self, data: bytes, events: list[ConnectionEvent], now: float) -> bytes:
        """Continue the handshake; return the bytes after it."""
        rest = self._setup.negotiate(data, self.outgoing)
        if rest is None:
            return b""
        self.version = self._setup.handshake.version
        if self.version != self._config.profile.versions[-1]:
            self._use_codec(make_codec(self._config, self.version))
        if self.version >= 3:
            # An unidentified peer may not send large frames: none is legal before the hello (3.5).
            self._codec.frame_bytes_max = min(HELLO_BYTES_MAX, self._codec.frame_bytes_max)
            self.state = transition(self.state, ConnectionState.AWAITING_HELLO)
            self.send(self._setup.hello)
        else:
            self._open(events, now)
        return rest

    def _use_codec(self, codec: Codec) -> None:
        self._codec = codec
        self._reader = FrameReader(codec, self._config.buffer_cache, self._share)
        self.queue_request = partial(codec.encode_request, self.outgoing)
        self.queue_reply = partial(codec.encode_reply, self.outgoing)

    def _open(self, events: list[ConnectionEvent], now: float) -> None:
        self.state = transition(self.state, ConnectionState.OPEN)
        has_requests = self.is_tunnel or self.role is ConnectionRole.SERVER
        self._fast_path_frames = _REQUESTS if has_requests else _REPLIES
        self.needs_attention = True
        events.append(ConnectionOpened(self.version))
        self._heartbeats.open(now)
        self.send_heartbeats()

    def _process_frame(self, frame: Frame, events: list[ConnectionEvent], now: float) -> None:
        frame_type, is_tunnel = type(frame), self.is_tunnel
        action = frame_action(self.version, self.role, self.state, frame_type, is_tunnel)
        if action is FrameAction.REJECT:
            connection = "tunnel" if is_tunnel else "connection"
            raise UnexpectedFrameError(
                f"{frame_type.__name__} from the {self.role.opposite.value} of a {connection} "
                f"is not allowed in state {self.state.name.lower()}"
            )
        # Any other frame shows that the server accepted the tunnel (3.6).
        if self.state is ConnectionState.AWAITING_TUNNEL and frame_type is not GoodbyeFrame:
            self._open(events, now)
        if self._heartbeats.consume(frame, now):
            # A heartbeat set-up may have moved the deadline forward.
            self.needs_attention = True
            return
        if isinstance(frame, HelloFrame):
            self._on_hello(frame, events, now)
        elif isinstance(frame, ProofFrame):
            self._on_proof(frame, events, now)
        elif action is FrameAction.IGNORE:
            events.append(
                FrameIgnored(frame_type.__name__.removesuffix("Frame"), getattr(frame, "id", 0))
            )
        else:
            if isinstance(frame, GoodbyeFrame):
                self.state = transition(self.state, ConnectionState.DRAINING)
            events.append(frame)  # type: ignore[arg-type]

    def _on_hello(self, hello: HelloFrame, events: list[ConnectionEvent], now: float) -> None:
        """Open the connection, or await the proof of the peer in a cluster with a secret."""
        assert isinstance(self._codec, Version3Codec)
        authentication = self._setup.receive_hello(hello, self._codec.hello_body)
        if authentication is None:
            self._accept_hello(hello, events, now)
            return
        self.state = transition(self.state, ConnectionState.AWAITING_PROOF)
        if self.role is ConnectionRole.CLIENT:
            self.send(authentication.build_proof())

    def _on_proof(self, frame: ProofFrame, events: list[ConnectionEvent], now: float) -> None:
        authentication = self._setup.authentication
        assert authentication is not None
        hello = authentication.verify_proof(frame)
        if self.role is ConnectionRole.SERVER:
            self.send(authentication.build_proof())
        self._accept_hello(hello, events, now)

    def _accept_hello(self, hello: HelloFrame, events: list[ConnectionEvent], now: float) -> None:
        """Apply the verified hello of the peer, then open the connection or await the tunnel."""
        assert isinstance(self._codec, Version3Codec)
        self.is_tunnel = self._setup.accept_hello(hello, self._codec)
        self.peer = hello
        if self._share is not None:
            self._share.name = hello.name
        self.send_bytes_max = hello.frame_bytes_max
        limits = self._config.limits
        self._heartbeats = PingHeartbeats(
            limits.heartbeat_interval_s,
            limits.heartbeat_timeout_s,
            hello.heartbeat_timeout_ms / 1000,
        )
        if self.is_tunnel and self.role is ConnectionRole.CLIENT:
            check_tunnel_hello(hello)
            self.state = transition(self.state, ConnectionState.AWAITING_TUNNEL)
        else:
            self._open(events, now)

    def resume_large_frame(self) -> None:
        """Continue with the large frame that waited: its memory is reserved now."""
        self._reader.start_large_frame()
        self.wants_buffer = self._reader.large is not None

    def on_unmatched_reply(self, reply: ReplyFrame) -> None:
        """Handle a reply to a request that was never sent: version 3 rejects it (3.5)."""
        if self.version >= 3:
            self.reject(UnexpectedFrameError(f"reply to request {reply.id}, which was never sent"))

    def pause_reading(self) -> None:
        """Suspend the timeouts of the peer while the socket is not read (3.3)."""
        self._reads_paused = True
        self._heartbeats.pause()
        self.needs_attention = True

    def resume_reading(self, now: float) -> None:
        """Restart the timeouts of the peer: the socket is read again."""
        self._reads_paused = False
        self._heartbeats.resume()
        self._last_read = now
        self._reader.unfinished_at = None

    # Output.

    def request(
        self,
        id: int,
        subject: str,
        payload: bytes,
        timeout_ms: int,
        one_way: bool = False,
        trace: SpanContext | None = None,
    ) -> None:
        """Queue a request, with its trace context if the peer accepts traces (3.1)."""
        size = 4 * len(subject) + len(payload) + TRACE_BYTES_MAX
        accepts_traces = self.peer is not None and self.peer.accepts_traces
        if trace is not None and accepts_traces and size <= self.send_bytes_max:
            codec: Version3Codec = self._codec  # type: ignore[assignment]
            codec.encode_request(self.outgoing, id, subject, payload, timeout_ms, one_way, trace)
        else:
            self.queue_request(id, subject, payload, timeout_ms, one_way)

    def reply(
        self, id: int, status: int, payload: bytes, code: int = 0, retryable: bool = False
    ) -> None:
        """Queue a reply; versions 1 and 2 lack the status STOPPING and send NO_HANDLER."""
        if status > ReplyStatus.PROTOCOL_FAILED and self.version < 3:
            status = ReplyStatus.NO_HANDLER
        self.queue_reply(id, status, payload, code, retryable)

    def send(self, frame: Frame) -> None:
        """Queue a frame; its type must exist in the negotiated version."""
        self._codec.encode(self.outgoing, frame)

    def cancel(self, id: int) -> None:
        """Queue a cancel for a request; versions 1 and 2 have no such frame."""
        if self.version >= 3:
            self.send(CancelFrame(id))

    def goodbye(self, reason: str, code: int = 0) -> None:
        """Queue a goodbye (version 3) and drain, or close if the connection is not open."""
        if self.state is not ConnectionState.CLOSED:
            self._send_goodbye(reason, code)
        if self.state is ConnectionState.OPEN:
            self.state = transition(self.state, ConnectionState.DRAINING)
        elif self.state is not ConnectionState.DRAINING:
            # Before the connection is open, no request can be in flight.
            self.close()

    def _send_goodbye(self, reason: str, code: int) -> None:
        """Queue a goodbye, but not while the server awaits the proof of this client (3.5)."""
        has_secret = self.role is ConnectionRole.CLIENT and self._config.secret is not None
        is_unproven = has_secret and self.state is ConnectionState.AWAITING_HELLO
        if self.version >= 3 and not is_unproven:
            self.send(GoodbyeFrame(code, reason))

    def ping(self, now: float) -> None:
        """Queue a ping that measures the round trip; without effect in versions 1 and 2."""
        self._heartbeats.ping(now)
        self.send_heartbeats()

    def data_to_send(self, now: float) -> list[bytes]:
        queued = self.outgoing.copy()
        if queued:
            self._last_write = now
            self.outgoing.clear()
        return queued

    # Time.

    def deadline(self) -> float:
        """Return the time at which `tick` must be called next."""
        if self.state is ConnectionState.CLOSED:
            return NEVER
        if self.state in CONNECTING:
            return self._handshake_deadline
        heartbeat_at = self._heartbeats.deadline(self._read_at(self._ticked_at), self._last_write)
        # No deadline is set when a frame starts, so ticks poll for one that does not finish.
        return min(heartbeat_at, self._ticked_at + self._config.limits.frame_timeout_s / 4)

    def tick(self, now: float) -> None:
        """Send heartbeats that are due, and reject a peer that missed a deadline."""
        self._ticked_at = now
        try:
            if self.state in CONNECTING:
                if now >= self._handshake_deadline:
                    timeout_s = self._config.limits.handshake_timeout_s
                    raise PeerTimeoutError(f"no complete handshake within {timeout_s:.3g} s")
            elif self.state is not ConnectionState.CLOSED:
                if not self._reads_paused:
                    self._reader.check_progress(now, self._config.limits.frame_timeout_s)
                self._heartbeats.tick(now, self._read_at(now), self._last_write)
        except PeerTimeoutError as error:
            self.reject(error)
        self.send_heartbeats()

    def extend_deadlines(self, stalled_s: float, now: float) -> None:
        """Extend the deadlines of the peer by the time in which this side did not read."""
        self._last_read = min(self._last_read + stalled_s, now)
        self._handshake_deadline = max(self._handshake_deadline, now + stalled_s)
        if self._reader.unfinished_at is not None:
            self._reader.unfinished_at += stalled_s

    def _read_at(self, now: float) -> float:
        return max(self._last_read, now) if self._reads_paused else self._last_read

    def send_heartbeats(self) -> None:
        """Queue heartbeats; while the socket is not writable, the last pong is held."""
        if self._heartbeats.outgoing:
            is_writable = self.is_writable and self.state is not ConnectionState.CLOSED
            for frame in self._heartbeats.release(is_writable=is_writable):
                self.send(frame)

    def reject(self, error: RemoteProtocolError) -> None:
        """Report a breach of the protocol to the peer as its version allows (4), then close."""
        self.failure = error
        self.needs_attention = True
        request_id = getattr(error, "request_id", None)
        if request_id is not None and self.role is ConnectionRole.SERVER and not self.is_tunnel:
            self.reply(request_id, ReplyStatus.PROTOCOL_FAILED, str(error).encode(), error.code)
        self._send_goodbye(str(error), error.code)
        self.close()

    def close(self) -> None:
        """Close the machine: later input is dropped."""
        self.state = transition(self.state, ConnectionState.CLOSED)
        self._fast_path_frames = _NONE
        self.wants_buffer = False
        self._reader.drop()

    def __repr__(self) -> str:
        name, state = f" {self.peer.name}" if self.peer else "", self.state.name.lower()
        return f"<WireConnection {self.role.value}{name} version {self.version} {state}>"
