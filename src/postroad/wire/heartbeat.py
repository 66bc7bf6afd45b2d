"""How a connection that has nothing to say shows that it lives, and notices that its peer does not.

Three kinds behind one interface: none (versions 1 and 2 as documented, which rely on TCP's own
keep-alive), pings of version 3, and the set-up and heartbeat requests of the `zeebe` profile.
Heartbeats never depend on how long requests take.
"""

from __future__ import annotations

from collections.abc import Callable

from postroad.core.errors import MalformedFrame, MalformedPayload, PeerSilent

from . import sbe
from .frames import Frame, Ping, Pong, Reply, Request, Status
from .pending import NEVER

SETUP_SUBJECT = "internal-heartbeat-setup"
BEAT_SUBJECT = "internal-heartbeat"

NextId = Callable[[], int]
WallClock = Callable[[], int]
"""Milliseconds since the epoch."""


class Heartbeats:
    """No heartbeats: nothing is sent, nothing expires. The other kinds refine this."""

    intercepts = False
    """Whether `consume` must see every request and reply."""

    def __init__(self) -> None:
        # Frames to be sent, taken by the connection after each call.
        self.outgoing: list[Frame] = []
        self.interval_s = NEVER
        self.timeout_s = NEVER
        # Time of the last answered ping, when this kind measures it.
        self.round_trip_s: float | None = None

    def open(self) -> None:
        """The connection is open."""

    def consume(self, frame: Frame, now: float) -> bool:
        """Take a frame that belongs to the heartbeats; False if it is somebody else's."""
        return False

    def deadline(self, last_read: float, last_write: float) -> float:
        """When `tick` has something to do."""
        return min(last_write + self.interval_s, last_read + self.timeout_s)

    def tick(self, now: float, last_read: float, last_write: float) -> None:
        """Send what is due; raises PeerSilent when the peer must be given up."""
        if now >= last_read + self.timeout_s and self._may_give_up():
            raise PeerSilent(f"nothing was read for {now - last_read:.3g} s")
        if now >= last_write + self.interval_s:
            self._beat(now)

    def _may_give_up(self) -> bool:
        return True

    def _beat(self, now: float) -> None:
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
            self.interval_s = min(self.interval_s, peer_timeout_s / 3)
        self._sequence = 0
        self._sent_at = 0.0

    def consume(self, frame: Frame, now: float) -> bool:
        if isinstance(frame, Ping):
            self.outgoing.append(Pong(frame.id))
            return True
        if isinstance(frame, Pong):
            if frame.id == self._sequence:
                self.round_trip_s = now - self._sent_at
            return True
        return False

    def _beat(self, now: float) -> None:
        self._sequence += 1
        self._sent_at = now
        self.outgoing.append(Ping(self._sequence))


class ZeebeClientHeartbeats(Heartbeats):
    """The dialing side: asks for heartbeats in its first frame, then sends them when quiet."""

    intercepts = True

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
        # Heartbeats whose answer is awaited, oldest first.
        self._unanswered: list[int] = []

    def open(self) -> None:
        interval_s, timeout_s = self._wanted
        if interval_s:
            self._setup_id = self._next_id()
            setup = sbe.SetupRequest(round(timeout_s * 1000), self._sends_payload)
            payload = sbe.encode_setup_request(setup)
            self.outgoing.append(Request(self._setup_id, SETUP_SUBJECT, payload))

    def consume(self, frame: Frame, now: float) -> bool:
        # Some older servers send heartbeat requests of their own, which want no answer.
        if isinstance(frame, Request):
            return frame.subject == BEAT_SUBJECT
        if not isinstance(frame, Reply):
            return False
        if frame.id == self._setup_id:
            self._setup_id = None
            self._agree(frame)
            return True
        is_beat = frame.id in self._unanswered
        # A reply to anything sent after a heartbeat proves as much as the heartbeat's own.
        self._unanswered = [id for id in self._unanswered if id > frame.id]
        return is_beat

    def _agree(self, reply: Reply) -> None:
        try:
            answer = sbe.decode_setup_response(reply.payload)
        except MalformedPayload:
            return
        if reply.status == Status.OK and answer.is_enabled:
            self.interval_s, self.timeout_s = self._wanted
            self._sends_payload = self._sends_payload and answer.sends_payload

    def deadline(self, last_read: float, last_write: float) -> float:
        if self._unanswered:
            return super().deadline(last_read, last_write)
        return last_write + self.interval_s

    def _may_give_up(self) -> bool:
        return bool(self._unanswered)

    def _beat(self, now: float) -> None:
        id = self._next_id()
        self._unanswered.append(id)
        payload = sbe.encode_beat(self._wall_clock()) if self._sends_payload else b""
        self.outgoing.append(Request(id, BEAT_SUBJECT, payload))


class ZeebeServerHeartbeats(Heartbeats):
    """The accepting side: answers, and gives up a client by the timeout that client asked for."""

    intercepts = True

    def __init__(self, *, sends_payload: bool, wall_clock: WallClock) -> None:
        super().__init__()
        self._sends_payload = sends_payload
        self._wall_clock = wall_clock

    def consume(self, frame: Frame, now: float) -> bool:
        if not isinstance(frame, Request):
            return False
        if frame.subject == SETUP_SUBJECT:
            self.outgoing.append(Reply(frame.id, Status.OK, self._set_up(frame.payload)))
            return True
        if frame.subject == BEAT_SUBJECT and self.timeout_s < NEVER:
            payload = sbe.encode_beat_answer(self._wall_clock()) if self._sends_payload else b""
            self.outgoing.append(Reply(frame.id, Status.OK, payload))
            return True
        return False

    def _set_up(self, payload: bytes) -> bytes:
        """Install the client's timeout; the answer says enabled even if there is nothing to do."""
        if not payload:
            raise MalformedFrame("heartbeat set-up without payload")
        try:
            setup = sbe.decode_setup_request(payload)
        except MalformedPayload:
            setup = sbe.SetupRequest(0, sends_payload=False)
        if setup.timeout_ms:
            self.timeout_s = setup.timeout_ms / 1000
        self._sends_payload = self._sends_payload and setup.sends_payload
        return sbe.encode_setup_response(sbe.SetupResponse(True, self._sends_payload))
