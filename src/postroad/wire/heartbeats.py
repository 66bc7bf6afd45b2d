"""Heartbeats: how an idle connection stays alive and detects a dead peer.

Three kinds share one interface: none (versions 1 and 2 as documented, with TCP keep-alive only),
pings of version 3 (3.3), and the set-up and heartbeat requests of the `zeebe` profile (2.3).
Heartbeats do not depend on how long requests take.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import msgspec

from postroad.core.errors import MalformedFrameError, MalformedPayloadError, PeerTimeoutError
from postroad.core.timing import NEVER
from postroad.wire.frames import Frame, PingFrame, PongFrame, ReplyFrame, ReplyStatus, RequestFrame

SETUP_SUBJECT = "internal-heartbeat-setup"
HEARTBEAT_SUBJECT = "internal-heartbeat"
_SUBJECTS = frozenset({SETUP_SUBJECT, HEARTBEAT_SUBJECT})

# The settings of a peer cannot make this side send more often than this.
_INTERVAL_S_MIN = 0.05
# Nor can they make it check for timeouts so often that little else is done.
_TIMEOUT_S_MIN = 3 * _INTERVAL_S_MIN

# Limit of the unanswered heartbeats that are remembered; the oldest decide the timeout.
_UNANSWERED_MAX = 8

NextId = Callable[[], int]
WallClock = Callable[[], int]
"""Milliseconds since the epoch."""


class Heartbeats:
    """No heartbeats: nothing is sent, nothing expires. Base class of the other kinds."""

    def __init__(self) -> None:
        # Frames to send; the connection collects them after each call.
        self.outgoing: list[Frame] = []
        self.interval_s = NEVER
        self.timeout_s = NEVER
        # Last measured round trip, if this kind measures it.
        self.round_trip_s: float | None = None

    def open(self, now: float) -> None:
        """Start: the connection is open."""

    def concerns(self, frames: list[Frame]) -> bool:
        """Return whether `consume` must see any of these requests or replies."""
        return False

    def consume(self, frame: Frame, now: float) -> bool:
        """Process a heartbeat frame; return False if the frame is not one."""
        return False

    def release(self, *, is_writable: bool) -> list[Frame]:
        """Return and clear the frames to send; while the socket is not writable, return none."""
        released, self.outgoing = self.outgoing, []
        if is_writable:
            return released
        # Frames would only accumulate; the last pong is enough for the peer.
        self.outgoing += [frame for frame in released if isinstance(frame, PongFrame)][-1:]
        return []

    def pause(self) -> None:
        """Adapt to this side having stopped reading."""

    def resume(self) -> None:
        """Adapt to this side reading again."""

    def deadline(self, last_read: float, last_write: float) -> float:
        """Return the time at which `tick` must be called."""
        return min(last_write + self.interval_s, self._timeout_at(last_read))

    def tick(self, now: float, last_read: float, last_write: float) -> None:
        """Queue a heartbeat if one is due; raise PeerTimeoutError if the peer timed out."""
        if now >= self._timeout_at(last_read):
            raise PeerTimeoutError(
                f"nothing was received from the peer for {now - last_read:.3g} s"
            )
        if now >= last_write + self.interval_s:
            self._send_heartbeat(now)

    def _timeout_at(self, last_read: float) -> float:
        return last_read + self.timeout_s

    def ping(self, now: float) -> None:
        """Queue a heartbeat that measures the round trip, if this kind does."""

    def _send_heartbeat(self, now: float) -> None:
        """Queue one heartbeat."""


NO_HEARTBEATS = Heartbeats()
"""Shared by all connections without heartbeats: nothing in it ever changes."""


class PingHeartbeats(Heartbeats):
    """Version 3, both sides: a side that wrote nothing for its interval sends a ping (3.3)."""

    def __init__(self, interval_s: float, timeout_s: float, peer_timeout_s: float) -> None:
        super().__init__()
        if interval_s:
            self.timeout_s = timeout_s
            self.interval_s = interval_s
        if peer_timeout_s:
            # The peer uses its own timeout, so that bounds the interval of this side.
            self.interval_s = min(self.interval_s, max(peer_timeout_s / 3, _INTERVAL_S_MIN))
        self._sequence = 0
        # Ids of unanswered pings and when they were sent, oldest first.
        self._sent_at: dict[int, float] = {}

    def consume(self, frame: Frame, now: float) -> bool:
        if isinstance(frame, PingFrame):
            self.outgoing.append(PongFrame(frame.id))
            return True
        if isinstance(frame, PongFrame):
            sent_at = self._sent_at.pop(frame.id, None)
            if sent_at is not None:
                self.round_trip_s = now - sent_at
            return True
        return False

    def ping(self, now: float) -> None:
        if len(self._sent_at) >= _UNANSWERED_MAX:
            del self._sent_at[next(iter(self._sent_at))]
        self._sequence += 1
        self._sent_at[self._sequence] = now
        self.outgoing.append(PingFrame(self._sequence))

    def _send_heartbeat(self, now: float) -> None:
        self.ping(now)


# Heartbeat messages of the `zeebe` profile in SBE: little endian, 8-byte header (2.3).
_HEADER = struct.Struct("<HHHH")
_SCHEMA_ID = 10
_SCHEMA_VERSION = 2
_SETUP_REQUEST, _SETUP_RESPONSE, _HEARTBEAT, _HEARTBEAT_REPLY = 1, 2, 3, 4
_TRUE = 1

_SETUP_REQUEST_BODY = struct.Struct("<IB")
_SETUP_RESPONSE_BODY = struct.Struct("<BB")
_TIMESTAMP = struct.Struct("<Q")


class HeartbeatSetupRequest(msgspec.Struct, frozen=True):
    """Heartbeat timeout of a client, and whether it supports timestamps in heartbeats."""

    timeout_ms: int
    sends_payload: bool


class HeartbeatSetupResponse(msgspec.Struct, frozen=True):
    """The response of the server."""

    is_enabled: bool
    sends_payload: bool


def encode_setup_request(setup: HeartbeatSetupRequest) -> bytes:
    return _encode(_SETUP_REQUEST, _SETUP_REQUEST_BODY, setup.timeout_ms, setup.sends_payload)


def decode_setup_request(payload: bytes) -> HeartbeatSetupRequest:
    """Decode template 1; older schema versions lack the last field, then it is false."""
    body = _body(payload, _SETUP_REQUEST, 4)
    return HeartbeatSetupRequest(int.from_bytes(body[:4], "little"), body[4:5] == bytes([_TRUE]))


def encode_setup_response(setup: HeartbeatSetupResponse) -> bytes:
    return _encode(_SETUP_RESPONSE, _SETUP_RESPONSE_BODY, setup.is_enabled, setup.sends_payload)


def decode_setup_response(payload: bytes) -> HeartbeatSetupResponse:
    """Decode template 2; older schema versions lack the last field, then it is false."""
    body = _body(payload, _SETUP_RESPONSE, 1)
    return HeartbeatSetupResponse(body[0] == _TRUE, body[1:2] == bytes([_TRUE]))


def encode_heartbeat(epoch_ms: int) -> bytes:
    """Encode template 3: when a heartbeat was sent."""
    return _encode(_HEARTBEAT, _TIMESTAMP, epoch_ms)


def encode_heartbeat_reply(epoch_ms: int) -> bytes:
    """Encode template 4: when a heartbeat was received."""
    return _encode(_HEARTBEAT_REPLY, _TIMESTAMP, epoch_ms)


def _encode(template: int, body: struct.Struct, *values: int) -> bytes:
    return _HEADER.pack(body.size, template, _SCHEMA_ID, _SCHEMA_VERSION) + body.pack(*values)


def _body(payload: bytes, template: int, block_bytes_min: int) -> bytes:
    if len(payload) < _HEADER.size:
        raise MalformedPayloadError(
            f"heartbeat message of {len(payload)} bytes is shorter than its header"
        )
    block_bytes, actual_template, schema, _ = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size : _HEADER.size + block_bytes]
    if (actual_template, schema) != (template, _SCHEMA_ID):
        raise MalformedPayloadError(
            f"heartbeat message has template {actual_template} of schema {schema}, "
            f"expected {template} of {_SCHEMA_ID}"
        )
    if len(body) < max(block_bytes, block_bytes_min):
        raise MalformedPayloadError(f"heartbeat message ends after {len(body)} bytes of its body")
    return body


class ZeebeClientHeartbeats(Heartbeats):
    """Client of profile `zeebe`: requests heartbeats in its first frame, then sends them when idle.

    The peer times out when it is silent although a heartbeat is unanswered (2.3). Servers
    of versions 8.5 to 8.7 reject the set-up: they expect heartbeats without replies, and send
    their own.
    """

    def __init__(
        self,
        interval_s: float,
        timeout_s: float,
        *,
        sends_payload: bool,
        next_id: NextId,
        wall_clock: WallClock,
    ) -> None:
        super().__init__()
        self._settings = (interval_s, timeout_s)
        self._sends_payload = sends_payload
        self._next_id = next_id
        self._wall_clock = wall_clock
        self._setup_id: int | None = None
        # Ids of heartbeat requests; their replies are consumed, however often they arrive.
        self._request_ids: deque[int] = deque(maxlen=2 * _UNANSWERED_MAX)
        # Ids and times of the unanswered heartbeats, oldest first.
        self._unanswered: deque[tuple[int, float]] = deque()
        # Whether the server rejected the set-up.
        self._is_one_way = False

    def open(self, now: float) -> None:
        interval_s, timeout_s = self._settings
        if interval_s:
            self._setup_id = self._next_request_id()
            setup = HeartbeatSetupRequest(round(timeout_s * 1000), self._sends_payload)
            payload = encode_setup_request(setup)
            self.outgoing.append(RequestFrame(self._setup_id, SETUP_SUBJECT, payload))

    def concerns(self, frames: list[Frame]) -> bool:
        if self._unanswered or self._setup_id is not None:
            return True
        # Ids ascend: replies to later requests are none to heartbeats.
        newest = self._request_ids[-1] if self._request_ids else 0
        return any(frame.id <= newest for frame in frames)  # type: ignore[union-attr]

    def consume(self, frame: Frame, now: float) -> bool:
        if isinstance(frame, RequestFrame):
            if frame.subject == HEARTBEAT_SUBJECT and self._is_one_way:
                # A server that sends heartbeats is alive as long as they come.
                self.timeout_s = self._settings[1]
            return frame.subject == HEARTBEAT_SUBJECT
        if not isinstance(frame, ReplyFrame):
            return False
        # A reply to a request sent after a heartbeat proves as much as the heartbeat reply itself.
        while self._unanswered and self._unanswered[0][0] <= frame.id:
            self._unanswered.popleft()
        if frame.id == self._setup_id:
            self._setup_id = None
            self._on_setup_reply(frame)
        return frame.id in self._request_ids

    def deadline(self, last_read: float, last_write: float) -> float:
        return super().deadline(last_read, self._idle_since(last_read, last_write))

    def tick(self, now: float, last_read: float, last_write: float) -> None:
        super().tick(now, last_read, self._idle_since(last_read, last_write))

    def _idle_since(self, last_read: float, last_write: float) -> float:
        """Return the time from which the heartbeat interval counts.

        A client that writes and receives nothing must send heartbeats too, but only a few.
        """
        if self._is_one_way:
            return last_write
        if not self._unanswered:
            return min(last_read, last_write)
        return last_write if len(self._unanswered) < _UNANSWERED_MAX else NEVER

    def _timeout_at(self, last_read: float) -> float:
        """Return the time of the timeout; silence counts only while a heartbeat is unanswered."""
        if self._is_one_way:
            return last_read + self.timeout_s
        if not self._unanswered:
            return NEVER
        reply_timeout_s = self.timeout_s - self.interval_s
        return max(last_read + self.interval_s, self._unanswered[0][1]) + reply_timeout_s

    def _next_request_id(self) -> int:
        id = self._next_id()
        self._request_ids.append(id)
        return id

    def _on_setup_reply(self, reply: ReplyFrame) -> None:
        if reply.status == ReplyStatus.NO_HANDLER:
            self._is_one_way = True
            self._sends_payload = False
            self.interval_s = self._settings[0]
            return
        try:
            response = decode_setup_response(reply.payload)
        except MalformedPayloadError:
            return
        if reply.status == ReplyStatus.OK and response.is_enabled:
            self.interval_s, self.timeout_s = self._settings
            self._sends_payload = self._sends_payload and response.sends_payload

    def _send_heartbeat(self, now: float) -> None:
        id = self._next_request_id()
        if not self._is_one_way:
            self._unanswered.append((id, now))
        payload = encode_heartbeat(self._wall_clock()) if self._sends_payload else b""
        self.outgoing.append(RequestFrame(id, HEARTBEAT_SUBJECT, payload))


class ZeebeServerHeartbeats(Heartbeats):
    """Server of profile `zeebe`: replies to heartbeats and applies the timeout of the client (2.3).

    While it does not read it cannot reply, so it repeats its last reply to keep the client alive.
    """

    def __init__(self, *, sends_payload: bool, wall_clock: WallClock) -> None:
        super().__init__()
        self._sends_payload = sends_payload
        self._wall_clock = wall_clock
        # Whether the client has sent a set-up, as those of version 8.8 and newer do.
        self._has_set_up = False
        # Id of the last heartbeat or set-up request, whose reply is repeated.
        self._last_id = 0

    def concerns(self, frames: list[Frame]) -> bool:
        return any(frame.subject in _SUBJECTS for frame in frames)  # type: ignore[union-attr]

    def consume(self, frame: Frame, now: float) -> bool:
        if not isinstance(frame, RequestFrame):
            return False
        if frame.subject == SETUP_SUBJECT:
            self._has_set_up = True
            self._last_id = frame.id
            self.outgoing.append(ReplyFrame(frame.id, ReplyStatus.OK, self._set_up(frame.payload)))
            return True
        if frame.subject != HEARTBEAT_SUBJECT:
            return False
        if not self._has_set_up:
            # Clients of versions 8.5 to 8.7 send it without set-up, and expect the same of us.
            self.outgoing.append(RequestFrame(frame.id, HEARTBEAT_SUBJECT, b""))
            return True
        if self.timeout_s < NEVER:
            self._last_id = frame.id
            self._send_heartbeat(now)
            return True
        return False

    def pause(self) -> None:
        self.interval_s = self.timeout_s / 3

    def resume(self) -> None:
        self.interval_s = NEVER

    def _send_heartbeat(self, now: float) -> None:
        payload = encode_heartbeat_reply(self._wall_clock()) if self._sends_payload else b""
        self.outgoing.append(ReplyFrame(self._last_id, ReplyStatus.OK, payload))

    def _set_up(self, payload: bytes) -> bytes:
        """Apply the timeout of the client; the response says enabled even without a timeout."""
        if not payload:
            raise MalformedFrameError("heartbeat set-up request has no payload")
        try:
            setup = decode_setup_request(payload)
        except MalformedPayloadError:
            setup = HeartbeatSetupRequest(0, sends_payload=False)
        if setup.timeout_ms:
            self.timeout_s = max(setup.timeout_ms / 1000, _TIMEOUT_S_MIN)
        self._sends_payload = self._sends_payload and setup.sends_payload
        return encode_setup_response(HeartbeatSetupResponse(True, self._sends_payload))
