"""How a connection that has nothing to say shows that it lives, and notices that its peer does not.

Three kinds behind one interface: none (versions 1 and 2 as documented, which rely on TCP's own
keep-alive), pings of version 3, and the set-up and heartbeat requests of the `zeebe` profile.
Heartbeats never depend on how long requests take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from postroad.core.errors import MalformedFrameError, MalformedPayloadError, PeerTimeoutError
from postroad.core.timing import NEVER
from postroad.wire import zeebe_heartbeats as sbe
from postroad.wire.frames import Frame, PingFrame, PongFrame, ReplyFrame, ReplyStatus, RequestFrame

SETUP_SUBJECT = "internal-heartbeat-setup"
BEAT_SUBJECT = "internal-heartbeat"

# A peer's settings must not make this side send more often than this.
_INTERVAL_S_MIN = 0.05
# Nor look for its silence so often that there is time for little else.
_TIMEOUT_S_MIN = 3 * _INTERVAL_S_MIN

# Heartbeats without an answer that are remembered; more would say nothing new.
_UNANSWERED_MAX = 8

NextId = Callable[[], int]
WallClock = Callable[[], int]
"""Milliseconds since the epoch."""


class Heartbeats:
    """No heartbeats: nothing is sent, nothing expires. The other kinds refine this."""

    uses_request_frames = False
    """Whether `consume` must see every request and reply."""

    def __init__(self) -> None:
        # Frames to be sent, taken by the connection after each call.
        self.outgoing: list[Frame] = []
        self.interval_s = NEVER
        self.timeout_s = NEVER
        # Time of the last answered ping, when this kind measures it.
        self.round_trip_s: float | None = None

    def open(self, now: float) -> None:
        """The connection is open."""

    def consume(self, frame: Frame, now: float) -> bool:
        """Take a frame that belongs to the heartbeats; False if it is somebody else's."""
        return False

    def release(self, *, is_writable: bool) -> list[Frame]:
        """Give and forget what is to be sent; to a peer that does not read, nothing for now."""
        released, self.outgoing = self.outgoing, []
        if is_writable:
            return released
        # They would only pile up; the last answer says it all.
        self.outgoing += [frame for frame in released if isinstance(frame, PongFrame)][-1:]
        return []

    def pause(self) -> None:
        """This side has stopped reading."""

    def resume(self) -> None:
        """This side reads again."""

    def deadline(self, last_read: float, last_write: float) -> float:
        """When `tick` has something to do."""
        return min(last_write + self.interval_s, self._timeout_at(last_read))

    def tick(self, now: float, last_read: float, last_write: float) -> None:
        """Send what is due; raises PeerTimeoutError when the peer must be given up."""
        if now >= self._timeout_at(last_read):
            raise PeerTimeoutError(f"nothing was read for {now - last_read:.3g} s")
        if now >= last_write + self.interval_s:
            self._send_heartbeat(now)

    def _timeout_at(self, last_read: float) -> float:
        return last_read + self.timeout_s

    def ping(self, now: float) -> None:
        """Queue a heartbeat that measures the round trip, where this kind does so."""

    def _send_heartbeat(self, now: float) -> None:
        """Queue one heartbeat."""


class PingHeartbeats(Heartbeats):
    """Version 3, both sides alike: whoever has been quiet for its interval sends a ping."""

    def __init__(self, interval_s: float, timeout_s: float, peer_timeout_s: float) -> None:
        super().__init__()
        if interval_s:
            self.timeout_s = timeout_s
            self.interval_s = interval_s
        if peer_timeout_s:
            # The peer gives up by its own settings, so they bound our silence.
            self.interval_s = min(self.interval_s, max(peer_timeout_s / 3, _INTERVAL_S_MIN))
        self._sequence = 0
        # When pings were sent that await their answer, by id, oldest first.
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


class ZeebeClientHeartbeats(Heartbeats):
    """The dialing side: asks for heartbeats in its first frame, then sends them when quiet.

    The peer is given up when it is silent although a heartbeat awaits its answer.
    """

    uses_request_frames = True

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
        self._wanted = (interval_s, timeout_s)
        self._sends_payload = sends_payload
        self._next_id = next_id
        self._wall_clock = wall_clock
        self._setup_id: int | None = None
        # Ids whose replies are ours, however often they come.
        self._asked: deque[int] = deque(maxlen=2 * _UNANSWERED_MAX)
        # Ids and times of the heartbeats that await an answer, oldest first.
        self._unanswered: deque[tuple[int, float]] = deque()

    def open(self, now: float) -> None:
        interval_s, timeout_s = self._wanted
        if interval_s:
            self._setup_id = self._next_request_id()
            setup = sbe.HeartbeatSetupRequest(round(timeout_s * 1000), self._sends_payload)
            payload = sbe.encode_setup_request(setup)
            self.outgoing.append(RequestFrame(self._setup_id, SETUP_SUBJECT, payload))

    def consume(self, frame: Frame, now: float) -> bool:
        # Some older servers send heartbeat requests of their own, which want no answer.
        if isinstance(frame, RequestFrame):
            return frame.subject == BEAT_SUBJECT
        if not isinstance(frame, ReplyFrame):
            return False
        # A reply to anything sent after a heartbeat proves as much as the heartbeat's own.
        while self._unanswered and self._unanswered[0][0] <= frame.id:
            self._unanswered.popleft()
        if frame.id == self._setup_id:
            self._setup_id = None
            self._on_setup_reply(frame)
        return frame.id in self._asked

    def deadline(self, last_read: float, last_write: float) -> float:
        return super().deadline(last_read, self._quiet_since(last_read, last_write))

    def tick(self, now: float, last_read: float, last_write: float) -> None:
        super().tick(now, last_read, self._quiet_since(last_read, last_write))

    def _quiet_since(self, last_read: float, last_write: float) -> float:
        """Whoever writes and never gets an answer must ask for one too, but need not insist."""
        if not self._unanswered:
            return min(last_read, last_write)
        return last_write if len(self._unanswered) < _UNANSWERED_MAX else NEVER

    def _timeout_at(self, last_read: float) -> float:
        """Silence counts only as far as the peer had time to answer a heartbeat."""
        if not self._unanswered:
            return NEVER
        patience_s = self.timeout_s - self.interval_s
        return max(last_read + self.interval_s, self._unanswered[0][1]) + patience_s

    def _next_request_id(self) -> int:
        """The id of a request of our own."""
        id = self._next_id()
        self._asked.append(id)
        return id

    def _on_setup_reply(self, reply: ReplyFrame) -> None:
        try:
            answer = sbe.decode_setup_response(reply.payload)
        except MalformedPayloadError:
            return
        if reply.status == ReplyStatus.OK and answer.is_enabled:
            self.interval_s, self.timeout_s = self._wanted
            self._sends_payload = self._sends_payload and answer.sends_payload

    def _send_heartbeat(self, now: float) -> None:
        id = self._next_request_id()
        self._unanswered.append((id, now))
        payload = sbe.encode_heartbeat(self._wall_clock()) if self._sends_payload else b""
        self.outgoing.append(RequestFrame(id, BEAT_SUBJECT, payload))


class ZeebeServerHeartbeats(Heartbeats):
    """The accepting side: answers, and gives up a client by the timeout that client asked for.

    While it does not read, it cannot answer; it repeats its last answer instead, so that the
    client sees it live.
    """

    uses_request_frames = True

    def __init__(self, *, sends_payload: bool, wall_clock: WallClock) -> None:
        super().__init__()
        self._sends_payload = sends_payload
        self._wall_clock = wall_clock
        # Id of the last heartbeat or set-up, the one to answer again.
        self._last_id = 0

    def consume(self, frame: Frame, now: float) -> bool:
        if not isinstance(frame, RequestFrame):
            return False
        if frame.subject == SETUP_SUBJECT:
            self._last_id = frame.id
            self.outgoing.append(ReplyFrame(frame.id, ReplyStatus.OK, self._set_up(frame.payload)))
            return True
        if frame.subject == BEAT_SUBJECT and self.timeout_s < NEVER:
            self._last_id = frame.id
            self._send_heartbeat(now)
            return True
        return False

    def pause(self) -> None:
        self.interval_s = self.timeout_s / 3

    def resume(self) -> None:
        self.interval_s = NEVER

    def _send_heartbeat(self, now: float) -> None:
        payload = sbe.encode_heartbeat_reply(self._wall_clock()) if self._sends_payload else b""
        self.outgoing.append(ReplyFrame(self._last_id, ReplyStatus.OK, payload))

    def _set_up(self, payload: bytes) -> bytes:
        """Install the client's timeout; the answer says enabled even if there is nothing to do."""
        if not payload:
            raise MalformedFrameError("heartbeat set-up without payload")
        try:
            setup = sbe.decode_setup_request(payload)
        except MalformedPayloadError:
            setup = sbe.HeartbeatSetupRequest(0, sends_payload=False)
        if setup.timeout_ms:
            self.timeout_s = max(setup.timeout_ms / 1000, _TIMEOUT_S_MIN)
        self._sends_payload = self._sends_payload and setup.sends_payload
        return sbe.encode_setup_response(sbe.HeartbeatSetupResponse(True, self._sends_payload))
