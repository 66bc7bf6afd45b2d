"""One connection as a pure state machine: bytes and time in, events and bytes out.

The glue calls `receive_data` for what arrived and `tick` when `deadline` has come. After every call
it writes what is in `out` (`data_to_send` takes it) and, if the machine `needs_attention`, looks at
`failure` and `deadline`.
Nothing here raises for what a peer did: a broken rule sets `failure`, queues what the peer should
still be told, and ends the machine.
"""

from __future__ import annotations

from collections.abc import Collection

from postroad.core.errors import (
    HandshakeRejectedError,
    PeerTimeoutError,
    RemoteProtocolError,
    UnexpectedFrameError,
)
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.core.names import Address
from postroad.core.tracing import SpanContext
from postroad.wire.codecs import TRACE_BYTES_MAX, Version3Codec
from postroad.wire.compression import negotiate_compression
from postroad.wire.config import WireConfig, make_codec, make_heartbeats, make_proving
from postroad.wire.frame_reader import FrameReader, FrameWatch
from postroad.wire.frame_rules import ConnectionState, FrameAction, frame_action
from postroad.wire.frames import (
    CancelFrame,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    Frame,
    FrameIgnored,
    GoodbyeFrame,
    HelloFrame,
    Proof,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from postroad.wire.handshake import PROVING_VERSION, Handshake
from postroad.wire.heartbeats import NextId, PingHeartbeats
from postroad.wire.hello import check_name, check_peer_hello, check_tunnel_hello
from postroad.wire.pending import NEVER
from postroad.wire.unfinished import Share

# What the usual traffic of a side consists of.
_NONE: frozenset[type] = frozenset()
_REQUESTS = frozenset({RequestFrame})
_REPLIES = frozenset({ReplyFrame})

# Before it is open, which must be so within the time of the handshake.
_EARLY = frozenset(
    {
        ConnectionState.HANDSHAKE,
        ConnectionState.AWAITING_HELLO,
        ConnectionState.PROVING,
        ConnectionState.AWAITING_TUNNEL,
    }
)
# Where a connection can stand right after the peer's hello, or its proof.
_MET = frozenset({ConnectionState.PROVING, ConnectionState.AWAITING_TUNNEL, ConnectionState.OPEN})


class WireConnection:
    """Either side of a connection, of any profile and version."""

    __slots__ = (
        "_config",
        "_fast_path_frames",
        "_handshake",
        "_handshake_deadline",
        "_heartbeats",
        "_last_read",
        "_proving",
        "_reader",
        "_reads_paused",
        "_share",
        "_ticked_at",
        "_watch",
        "certificate_names",
        "codec",
        "failure",
        "is_tunnel",
        "is_writable",
        "last_write",
        "needs_attention",
        "outgoing",
        "peer",
        "phase",
        "role",
        "send_bytes_max",
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
        self.phase = ConnectionState.HANDSHAKE
        # The agreed version, 0 until then.
        self.version = 0
        # Whether `failure` or `deadline` may have changed in a way that cannot wait; whoever looks
        # at both resets it.
        self.needs_attention = False
        # Why the connection must end, once a rule was broken.
        self.failure: RemoteProtocolError | None = None
        # What the peer told of itself (version 3 only).
        self.peer: HelloFrame | None = None
        # Whether both sides send requests and neither answers; known once the peer has said hello.
        self.is_tunnel = False
        # Largest payload and subject the peer accepts.
        self.send_bytes_max = config.limits.frame_bytes_max
        self._config = config
        # Names in the peer's certificate, None without one.
        self.certificate_names = certificate_names
        self._handshake = Handshake(role, config.profile, config.preamble)
        self._handshake_deadline = now + config.limits.handshake_timeout_s
        # In a cluster with a secret, until the peer has proven that it knows it.
        self._proving = make_proving(config, role)
        # Layout of the frames; the newest version's until one is agreed, then fixed.
        self.codec = make_codec(config, config.profile.versions[-1])
        self._share = share
        self._reader = FrameReader(self.codec, config.buffer_cache, share)
        self._heartbeats = make_heartbeats(config, role, next_id)
        # The frame that makes up nearly all traffic of this side and needs no closer look; none
        # unless the connection is open, nor where heartbeats are requests themselves.
        self._fast_path_frames = _NONE
        # What is queued. Always the same list, so that a busy link may hold on to it, take what is
        # in there by itself and note the time in `last_write`.
        self.outgoing: list[bytes] = []
        # Whether a large frame has begun, whose bytes should be read to `room`.
        self.wants_buffer = False
        self._last_read = self.last_write = self._ticked_at = now
        self._watch = FrameWatch(config.limits.frame_timeout_s, now)
        self._reads_paused = False
        # Set by the glue while the socket takes no more.
        self.is_writable = True
        if opening := self._handshake.initial_bytes():
            self.outgoing.append(opening)

    @property
    def sender(self) -> Address | None:
        """The address the peer advertises, once it has told it."""
        return self.codec.sender

    @property
    def peer_name(self) -> str | None:
        """The peer's node name, as far as it is known.

        Over TLS it is a name in the peer's certificate, whatever the version: the one it claims in
        version 3, the first in older versions. Without TLS it is what the peer claims.
        """
        names = self.certificate_names
        if names is None and self._config.is_secure:
            return None
        if self.peer is not None:
            return self.peer.name
        return next(iter(names), None) if names is not None else None

    @property
    def awaits_room(self) -> bool:
        """Whether a large frame waits for room; nothing should be read until it has that."""
        return self._reader.awaits_room

    @property
    def round_trip_s(self) -> float | None:
        """Last measured time of a ping (version 3), or None."""
        return self._heartbeats.round_trip_s

    # What arrives.

    def receive_data(self, data: bytes, now: float) -> list[ConnectionEvent]:
        """Take bytes from the peer; returns what they mean, in order."""
        self._last_read = now
        if not self._fast_path_frames:
            return self._receive_early(data, now)
        reader = self._reader
        frames = reader.feed(data)
        if frames and reader.is_fast_path and self._fast_path_frames.issuperset(map(type, frames)):
            self._watch.last_frame = now
            self.wants_buffer = False
            return frames  # type: ignore[return-value]
        return self._process_frames(frames, [], now)

    def _receive_early(self, data: bytes, now: float) -> list[ConnectionEvent]:
        """Take bytes while every frame needs a closer look."""
        events: list[ConnectionEvent] = []
        try:
            if self.phase is ConnectionState.HANDSHAKE:
                data = self._advance_handshake(data, events, now)
        except RemoteProtocolError as error:
            self.refuse(error)
        if not data or self.phase is ConnectionState.CLOSED:
            return events
        frames = self._reader.feed(data)
        self._process_frames(frames, events, now)
        while frames and isinstance(frames[-1], HelloFrame | Proof) and self.phase in _MET:
            # The codec stopped there; what followed can be read now.
            frames = self._reader.feed(b"")
            self._process_frames(frames, events, now)
        return events

    def receive_buffer(self) -> memoryview | None:
        """Where the next bytes should be read to while `awaits_large`; else None."""
        return self._reader.receive_buffer() if self.phase is not ConnectionState.CLOSED else None

    def buffer_updated(self, size: int, now: float) -> list[ConnectionEvent]:
        """Like `receive_data`, for bytes that were read to the room."""
        if self.phase is ConnectionState.CLOSED:
            return []
        self._last_read = now
        return self._process_frames(self._reader.buffer_filled(size), [], now)

    def _process_frames(
        self, frames: list[Frame], events: list[ConnectionEvent], now: float
    ) -> list[ConnectionEvent]:
        """Look at each frame, and at what the reader has come to."""
        if frames:
            self._watch.last_frame = now
        self._admit_each(frames, events, now)
        if self._reader.failure is not None and self.failure is None:
            self.refuse(self._reader.failure)
        self.wants_buffer = self._reader.large is not None and self.failure is None
        if self._reader.awaits_room:
            self.needs_attention = True
        return events

    def _advance_handshake(self, data: bytes, events: list[ConnectionEvent], now: float) -> bytes:
        """Go on with the handshake; returns what follows it."""
        rest = self._handshake.feed(data)
        if rest is None:
            return b""
        if self._proving is not None and self._handshake.offered < PROVING_VERSION:
            if self.role is ConnectionRole.SERVER:
                self.outgoing.append(self._handshake.response_bytes())
            raise HandshakeRejectedError(
                f"the peer speaks version {self._handshake.offered}, "
                "which cannot prove the secret of this cluster"
            )
        self.version = self._handshake.version
        if self.version < 3 and self._config.hello.is_tunnel:
            raise HandshakeRejectedError(
                f"the peer answered version {self.version}, without tunnels"
            )
        self.codec = make_codec(self._config, self.version)
        if isinstance(self.codec, Version3Codec):
            # Nothing large until the peer has said who it is.
            self.codec.accept_frames(min(HELLO_BYTES_MAX, self.codec.frame_bytes_max))
        self._reader = FrameReader(self.codec, self._config.buffer_cache, self._share)
        if self.role is ConnectionRole.SERVER:
            self.outgoing.append(self._handshake.response_bytes())
        if self.version >= 3:
            self.phase = ConnectionState.AWAITING_HELLO
            self.send(self._config.hello if self._proving is None else self._proving.hello)
        else:
            self._open(events, now)
        return rest

    def _open(self, events: list[ConnectionEvent], now: float) -> None:
        self.phase = ConnectionState.OPEN
        if not self._heartbeats.uses_request_frames:
            has_requests = self.is_tunnel or self.role is ConnectionRole.SERVER
            self._fast_path_frames = _REQUESTS if has_requests else _REPLIES
        self.needs_attention = True
        events.append(ConnectionOpened(self.version))
        self._heartbeats.open(now)
        self._send_heartbeats()

    def _admit_each(self, frames: list[Frame], events: list[ConnectionEvent], now: float) -> None:
        try:
            for frame in frames:
                self._process_frame(frame, events, now)
        except RemoteProtocolError as error:
            self.refuse(error)
        self._send_heartbeats()

    def _process_frame(self, frame: Frame, events: list[ConnectionEvent], now: float) -> None:
        kind, is_tunnel = type(frame), self.is_tunnel
        verdict = frame_action(self.version, self.role, self.phase, kind, is_tunnel)
        if verdict is FrameAction.REJECT:
            where = " of a tunnel" if is_tunnel else ""
            raise UnexpectedFrameError(
                f"{kind.__name__} frame from a {self.role.opposite.value}{where} "
                f"in phase {self.phase.value}"
            )
        if self.phase is ConnectionState.AWAITING_TUNNEL and not isinstance(frame, GoodbyeFrame):
            self._open(events, now)
        if self._heartbeats.consume(frame, now):
            # What was agreed may be due earlier than anything before.
            self.needs_attention = True
            return
        if isinstance(frame, HelloFrame):
            self._greet_back(frame, events, now)
        elif isinstance(frame, Proof):
            self._on_proof(frame, events, now)
        elif verdict is FrameAction.IGNORE:
            events.append(
                FrameIgnored(type(frame).__name__.removesuffix("Frame"), getattr(frame, "id", 0))
            )
        else:
            if isinstance(frame, GoodbyeFrame):
                self.phase = ConnectionState.DRAINING
            events.append(frame)  # type: ignore[arg-type]

    def _greet_back(self, hello: HelloFrame, events: list[ConnectionEvent], now: float) -> None:
        """Open, or first have the peer prove what it says, where the cluster has a secret."""
        proving = self._proving
        ours = self._config.hello if proving is None else proving.hello
        check_peer_hello(ours, hello, self.certificate_names)
        if proving is None:
            self._accept_hello(hello, events, now)
            return
        self.phase = ConnectionState.PROVING
        assert isinstance(self.codec, Version3Codec)
        proving.meet(hello, self.codec.hello_body)
        if self.role is ConnectionRole.CLIENT:
            self.send(proving.prove())

    def _on_proof(self, proof: Proof, events: list[ConnectionEvent], now: float) -> None:
        proving = self._proving
        assert proving is not None
        hello = proving.check(proof)
        if self.role is ConnectionRole.SERVER:
            self.send(proving.prove())
        self._accept_hello(hello, events, now)

    def _accept_hello(self, hello: HelloFrame, events: list[ConnectionEvent], now: float) -> None:
        """The peer is whom its hello names: settle on what both can do, and open."""
        ours = self._config.hello
        # Without a certificate, where others show one, a name says nothing, not even of a namesake.
        if self.certificate_names is not None or not self._config.is_secure:
            check_name(ours, hello)
        self.is_tunnel = (ours if self.role is ConnectionRole.CLIENT else hello).is_tunnel
        self.peer = hello
        if self._share is not None:
            self._share.name = hello.name
        if self.is_tunnel and self.role is ConnectionRole.CLIENT:
            check_tunnel_hello(hello)
        self.send_bytes_max = hello.frame_bytes_max
        limits = self._config.limits
        self._heartbeats = PingHeartbeats(
            limits.heartbeat_interval_s,
            limits.heartbeat_timeout_s,
            hello.heartbeat_timeout_ms / 1000,
        )
        assert isinstance(self.codec, Version3Codec)
        self.codec.accept_frames(limits.frame_bytes_max)
        if not self.is_tunnel:
            # What comes through a tunnel is mostly passed on: unpacking it would be a waste.
            chosen = negotiate_compression(tuple(self._config.algorithms), hello.compressions)
            self.codec.compression = self._config.algorithms[chosen] if chosen else None
        if self.is_tunnel and self.role is ConnectionRole.CLIENT:
            self.phase = ConnectionState.AWAITING_TUNNEL
        else:
            self._open(events, now)

    def go_on_large(self) -> None:
        """There is room for the large frame that waited."""
        self._reader.begin_large()
        self.wants_buffer = self._reader.large is not None

    def on_unmatched_reply(self, reply: ReplyFrame) -> None:
        """Judge a reply to a request that was never sent: version 3 knows no excuse for it."""
        if self.version >= 3:
            self.refuse(UnexpectedFrameError(f"reply to request {reply.id}, which was never sent"))

    def pause_reading(self) -> None:
        """The glue stops reading: until it resumes, silence is not the peer's fault."""
        self._reads_paused = True
        self._heartbeats.pause()
        self.needs_attention = True

    def resume_reading(self, now: float) -> None:
        """The glue reads again."""
        self._reads_paused = False
        self._heartbeats.resume()
        self._last_read = now
        self._watch.seen_at = None

    # What leaves.

    def request(
        self,
        id: int,
        subject: str,
        payload: bytes,
        timeout_ms: int,
        one_way: bool = False,
        trace: SpanContext | None = None,
    ) -> None:
        """Queue a request; the span it belongs to is told if the peer can read it."""
        if trace is not None and self._can_send_trace(subject, payload):
            codec: Version3Codec = self.codec  # type: ignore[assignment]
            codec.encode_request(self.outgoing, id, subject, payload, timeout_ms, one_way, trace)
        else:
            self.codec.encode_request(self.outgoing, id, subject, payload, timeout_ms, one_way)

    def _can_send_trace(self, subject: str, payload: bytes) -> bool:
        if self.peer is None or not self.peer.accepts_traces:
            return False
        return 4 * len(subject) + len(payload) + TRACE_BYTES_MAX <= self.send_bytes_max

    def reply(
        self, id: int, status: int, payload: bytes, code: int = 0, retryable: bool = False
    ) -> None:
        """Queue a reply; versions 1 and 2 have no status for stopping and say "no handler"."""
        if status > ReplyStatus.PROTOCOL_FAILED and self.version < 3:
            status = ReplyStatus.NO_HANDLER
        self.codec.encode_reply(self.outgoing, id, status, payload, code, retryable)

    def send(self, frame: Frame) -> None:
        """Queue any frame of this version."""
        self.codec.encode(self.outgoing, frame)

    def cancel(self, id: int) -> None:
        """Tell the peer that nobody waits for that request any more, where it can be told."""
        if self.version >= 3:
            self.send(CancelFrame(id))

    def goodbye(self, reason: str, code: int = 0) -> None:
        """Tell the peer that this side is about to close, where it can be told."""
        if (
            self.phase not in (ConnectionState.HANDSHAKE, ConnectionState.CLOSED)
            and self.version >= 3
        ):
            self.send(GoodbyeFrame(code, reason))
        if self.phase is ConnectionState.OPEN:
            self.phase = ConnectionState.DRAINING
        elif self.phase is not ConnectionState.DRAINING:
            # Whoever is not introduced has nothing in flight to wait for.
            self.close()

    def ping(self, now: float) -> None:
        """Queue a ping, where there are any: measures the round trip however busy the peer is."""
        self._heartbeats.ping(now)
        self._send_heartbeats()

    def flush_held_pong(self) -> None:
        """The socket takes more: queue the answer that had to wait for it."""
        self._send_heartbeats()

    def data_to_send(self, now: float) -> list[bytes]:
        """Everything queued since the last call."""
        queued = self.outgoing.copy()
        if queued:
            self.last_write = now
            self.outgoing.clear()
        return queued

    # Time.

    def deadline(self) -> float:
        """When `tick` must be called next."""
        if self.phase is ConnectionState.CLOSED:
            return NEVER
        if self.phase in _EARLY:
            return self._handshake_deadline
        due = self._heartbeats.deadline(self._read_at(self._ticked_at), self.last_write)
        # A frame may begin at any moment; looking this often finds one that does not end.
        return min(due, self._ticked_at + self._config.limits.frame_timeout_s / 4)

    def tick(self, now: float) -> None:
        """Do what time demands: heartbeats, and giving up a peer that is too slow."""
        self._ticked_at = now
        try:
            self._tick(now)
        except PeerTimeoutError as error:
            self.refuse(error)
        self._send_heartbeats()

    def _tick(self, now: float) -> None:
        if self.phase is ConnectionState.CLOSED:
            return
        if self.phase in _EARLY:
            if now >= self._handshake_deadline:
                allowed = self._config.limits.handshake_timeout_s
                raise PeerTimeoutError(f"no complete handshake within {allowed:.3g} s")
            return
        self._watch.check(self._reader, now, is_paused=self._reads_paused)
        self._heartbeats.tick(now, self._read_at(now), self.last_write)

    def extend_deadlines(self, held_up_s: float, now: float) -> None:
        """This side did not read for a while: that is not counted, and the peer has as much now."""
        self._last_read = min(self._last_read + held_up_s, now)
        self._handshake_deadline = max(self._handshake_deadline, now + held_up_s)
        if self._watch.seen_at is not None:
            self._watch.seen_at += held_up_s

    def _read_at(self, now: float) -> float:
        return max(self._last_read, now) if self._reads_paused else self._last_read

    def _send_heartbeats(self) -> None:
        if self._heartbeats.outgoing:
            is_writable = self.is_writable and self.phase is not ConnectionState.CLOSED
            for frame in self._heartbeats.release(is_writable=is_writable):
                self.send(frame)

    def refuse(self, error: RemoteProtocolError) -> None:
        """End the machine, after telling the peer as much as it can understand."""
        self.failure = error
        self.needs_attention = True
        request_id = getattr(error, "request_id", None)
        if request_id is not None and self.role is ConnectionRole.SERVER and not self.is_tunnel:
            self.reply(request_id, ReplyStatus.PROTOCOL_FAILED, str(error).encode(), error.code)
        if self.version >= 3:
            self.send(GoodbyeFrame(error.code, str(error)))
        self.close()

    def close(self) -> None:
        """The connection has ended: nothing more is taken."""
        self.phase = ConnectionState.CLOSED
        self._fast_path_frames = _NONE
        self.wants_buffer = False
        self._reader.drop()

    def __repr__(self) -> str:
        name = f" {self.peer.name}" if self.peer else ""
        return f"<Connection {self.role.value}{name} version {self.version} {self.phase.value}>"
