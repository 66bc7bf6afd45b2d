"""A connection between a client and a server, with everything that may go wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from postroad.core.errors import FrameTooLargeError, PeerTimeoutError, RemoteProtocolError
from postroad.testing import LivenessFailure, SafetyFailure, Simulation
from postroad.wire import NEVER, ConnectionRole, ConnectionState, Frame, ReplyFrame, RequestFrame
from tests.simulation.wire.endpoint import Endpoint
from tests.simulation.wire.messages import Ledger
from tests.simulation.wire.plan import LATENESS_S_MAX, Cut, Plan
from tests.simulation.wire.process import Disturbances, Process, disturbed_s


class Receiver(Protocol):
    def can_read(self) -> bool:
        """Whether it takes bytes now; it pumps the pipe when that changes."""

    def receive(self, data: bytes) -> None:
        """Bytes have arrived."""

    def receive_end(self) -> None:
        """The other side has closed, and all its bytes have arrived."""


class Pipe:
    def __init__(self, simulation: Simulation, cut: Cut, delay_s_max: float) -> None:
        self._simulation = simulation
        self._cut = cut
        self._delay_s_max = delay_s_max
        self._in_flight = bytearray()
        # When the bytes up to a position of the stream arrive, in order.
        self._arrivals: deque[tuple[float, int]] = deque()
        self._written = 0
        self._delivered = 0
        self._is_ending = False
        self._is_dead = False
        self._stalled_until = 0.0
        self._break_at: int | None = None
        self._on_break: Callable[[], None] = lambda: None
        self._flip_at: int | None = None
        self._on_flip: Callable[[], None] = lambda: None
        self.receiver: Receiver | None = None

    def write(self, data: bytes) -> None:
        if self._is_dead or self._is_ending:
            return
        self._in_flight += self._flipped(data)
        self._written += len(data)
        self._plan_arrival()

    def finish(self) -> None:
        self._is_ending = True
        self._plan_arrival()

    def _plan_arrival(self) -> None:
        rng, now = self._simulation.rng, self._simulation.now
        arrival = now + rng.uniform(0, self._delay_s_max)
        if self._arrivals:
            arrival = max(arrival, self._arrivals[-1][0])
        self._arrivals.append((arrival, self._written))
        # Now and then the reader comes late, and finds several writes at once.
        self._pump_at(arrival + rng.choice((0.0, rng.uniform(0, self._delay_s_max))))

    def _pump_at(self, time: float) -> None:
        self._simulation.timeline.at(time, self.pump)

    # Faults.

    def stall(self, until: float) -> None:
        """Let nothing pass for some time; what is written meanwhile arrives later."""
        self._stalled_until = max(self._stalled_until, until)
        if until < float("inf"):
            self._pump_at(until)

    def break_after(self, size: int, on_break: Callable[[], None]) -> None:
        self._break_at = self._delivered + size
        self._on_break = on_break

    def flip_after(self, size: int, on_flip: Callable[[], None]) -> None:
        self._flip_at = self._written + size
        self._on_flip = on_flip

    def heal(self) -> None:
        self._break_at = self._flip_at = None

    def kill(self) -> None:
        self._is_dead = True
        self._in_flight.clear()

    def _flipped(self, data: bytes) -> bytes:
        if self._flip_at is None or self._flip_at >= self._written + len(data):
            return data
        at = self._flip_at - self._written
        self._flip_at = None
        self._on_flip()
        bit = 1 << self._simulation.rng.randrange(8)
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]

    # Arrival.

    def pump(self) -> None:
        """Hand over a piece of what has arrived, if the receiver takes it."""
        receiver, now = self.receiver, self._simulation.now
        if (
            self._is_dead
            or receiver is None
            or not receiver.can_read()
            or now < self._stalled_until
        ):
            return
        arrived = self._take_arrivals(now)
        if arrived > self._delivered:
            self._deliver(receiver, arrived)
        elif self._is_ending and self._delivered == self._written:
            self._is_dead = True
            receiver.receive_end()

    def _take_arrivals(self, now: float) -> int:
        """Position in the stream up to which bytes have arrived."""
        arrived = self._delivered
        for time, position in self._arrivals:
            if time <= now:
                arrived = max(arrived, position)
        while self._arrivals and self._arrivals[0][1] <= self._delivered:
            self._arrivals.popleft()
        return arrived

    def _deliver(self, receiver: Receiver, arrived: int) -> None:
        size = self._piece_size(arrived - self._delivered)
        if self._break_at is not None and self._delivered + size >= self._break_at:
            size = self._break_at - self._delivered
        data = bytes(self._in_flight[:size])
        del self._in_flight[:size]
        self._delivered += size
        gap_s = self._simulation.rng.uniform(0, self._delay_s_max / 50)
        self._pump_at(self._simulation.now + gap_s)
        if data:
            receiver.receive(data)
        if self._delivered == self._break_at:
            self._on_break()

    def _piece_size(self, available: int) -> int:
        rng = self._simulation.rng
        if self._cut is Cut.WHOLE:
            return available
        if self._cut is Cut.PIECES:
            return rng.randint(1, available)
        return rng.randint(1, min(available, max(3, available // 20)))


# A handshake takes no longer than this when nothing is wrong, however it is cut.
HANDSHAKE_S_MAX = 0.5
# So little passes in a second when a frame is cut to crumbs.
FRAME_BYTES_PER_S_MIN = 64 * 1024


class Link:
    def __init__(
        self, simulation: Simulation, plan: Plan, processes: Iterable[Process], number: int
    ) -> None:
        self.number = number
        self.ledger = Ledger(plan.version)
        # By the side that reads from it.
        self.pipes = {role: Pipe(simulation, plan.cut, plan.delay_s_max) for role in ConnectionRole}
        self.endpoints: dict[ConnectionRole, Endpoint] = {}
        # Sides to which nothing will ever come again, and since when.
        self.cut_off: dict[ConnectionRole, float] = {}
        self._simulation = simulation
        self._plan = plan
        self._stalls = {role: Disturbances() for role in ConnectionRole}
        self._slow_readers = Disturbances()
        self._pauses = [process.pauses for process in processes]
        # Delays and lateness of one round trip.
        self._slack_s = 4 * plan.delay_s_max + 5 * LATENESS_S_MAX + 0.05

    def attach(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.role] = endpoint
        pipe = self.pipes[endpoint.role]
        pipe.receiver = endpoint
        endpoint.process.readers.append(pipe.pump)
        self._expect_handshake(endpoint)
        if endpoint.role in self.cut_off:
            self._expect_notice(endpoint)
        endpoint.settle()
        pipe.pump()

    def record(self, receiver: ConnectionRole, frame: Frame) -> None:
        self.ledger.record(receiver, frame)
        maximum = self._plan.sides[receiver].limits.frame_bytes_max
        if isinstance(frame, RequestFrame | ReplyFrame) and len(frame.payload) > maximum:
            self.ledger.oversized.add(receiver)

    # Faults.

    def stall(self, receivers: Iterable[ConnectionRole], until: float) -> None:
        """Let nothing pass to these sides for some time, or ever."""
        now = self._simulation.now
        for receiver in receivers:
            self.pipes[receiver].stall(until)
            self._stalls[receiver].add(now, until)
            if until == NEVER:
                self._cut_off(receiver)

    def _cut_off(self, receiver: ConnectionRole) -> None:
        self.cut_off.setdefault(receiver, self._simulation.now)
        if receiver in self.endpoints:
            self._expect_notice(self.endpoints[receiver])

    def cut(self, told: Iterable[ConnectionRole]) -> None:
        """Lose everything in flight; who is told closes, who is not has to notice."""
        for receiver, pipe in self.pipes.items():
            pipe.kill()
            if receiver in told:
                if receiver in self.endpoints:
                    self.endpoints[receiver].receive_end()
            else:
                self._stalls[receiver].add(self._simulation.now, NEVER)
                self._cut_off(receiver)

    def slow_down(self, reader: ConnectionRole, seconds: float) -> None:
        """Make a side stop reading for some time; only an open connection has work to wait for."""
        endpoint = self.endpoints.get(reader)
        if endpoint is not None and endpoint.opened_at is not None:
            self._slow_readers.add(self._simulation.now, self._simulation.now + seconds)
            endpoint.stop_reading(seconds)

    def heal(self) -> None:
        for pipe in self.pipes.values():
            pipe.heal()

    # Whether a machine may give up its peer.

    def judge_failure(self, endpoint: Endpoint, failure: RemoteProtocolError) -> None:
        """Without an excuse, a failure is a failure of the machine."""
        if self.ledger.is_tainted:
            return
        if isinstance(failure, FrameTooLargeError) and self._plan.version < 3:
            is_excused = endpoint.role in self.ledger.oversized
        elif isinstance(failure, PeerTimeoutError):
            is_excused = self._is_silence_excused(endpoint)
        else:
            is_excused = False
        if not is_excused:
            who = endpoint.role.value
            raise SafetyFailure(f"the {who} failed without a reason: {failure!r}")

    def _is_silence_excused(self, endpoint: Endpoint) -> bool:
        """Whether things were wrong for about as long as the machine has patience."""
        now = self._simulation.now
        limits = self._plan.sides[endpoint.role].limits
        if endpoint.phase_before in (ConnectionState.HANDSHAKE, ConnectionState.AWAITING_HELLO):
            start, patience_s = endpoint.started_at, limits.handshake_timeout_s - HANDSHAKE_S_MAX
        elif now - endpoint.last_read >= self._timeout_s(endpoint):
            start = endpoint.last_read
            patience_s = self._timeout_s(endpoint) - self._quiet_s(endpoint)
        else:
            start, patience_s = endpoint.started_at, limits.frame_timeout_s - HANDSHAKE_S_MAX
        excuse_s = disturbed_s(self._excuses(), start, now)
        return excuse_s >= patience_s - self._slack_s

    def _excuses(self) -> list[Disturbances]:
        excuses = [*self._stalls.values(), *self._pauses]
        # Version 3 goes on sending when it does not read; others only answer.
        return excuses if self._plan.version >= 3 else [*excuses, self._slow_readers]

    def _timeout_s(self, endpoint: Endpoint) -> float:
        if self._plan.version >= 3:
            return self._plan.sides[endpoint.role].limits.heartbeat_timeout_s or NEVER
        return endpoint.connection._heartbeats.timeout_s

    def _interval_s(self, role: ConnectionRole) -> float:
        """How long a side may be quiet, by its own settings and by what its peer told."""
        limits = self._plan.sides[role].limits
        interval_s = limits.heartbeat_interval_s or NEVER
        if self._plan.version >= 3:
            other = self._plan.sides[role.opposite].limits
            interval_s = min(interval_s, other.heartbeat_timeout_s / 3 or NEVER)
        return interval_s

    def _quiet_s(self, endpoint: Endpoint) -> float:
        """How long nothing may come from the peer although all is well."""
        return self._interval_s(
            endpoint.role.opposite if self._plan.version >= 3 else ConnectionRole.CLIENT
        )

    def _asks_every_s(self, endpoint: Endpoint) -> float:
        """How long the machine may be quiet; in profile `zeebe` only clients ask."""
        return self._interval_s(endpoint.role if self._plan.version >= 3 else ConnectionRole.CLIENT)

    # Whether a machine notices in time.

    def _expect_handshake(self, endpoint: Endpoint) -> None:
        limits = self._plan.sides[endpoint.role].limits
        latest = self._simulation.now + limits.handshake_timeout_s + self._slack_s

        def check() -> None:
            phase = endpoint.connection.state
            if not endpoint.is_closed and phase in (
                ConnectionState.HANDSHAKE,
                ConnectionState.AWAITING_HELLO,
            ):
                raise LivenessFailure(f"the {endpoint.role.value} still waits for a handshake")

        endpoint.process.expect_by(latest, check)

    def _expect_notice(self, endpoint: Endpoint) -> None:
        """A side to which nothing comes any more gives up in time, if it can know."""
        if endpoint.is_closed:
            return
        latest = self._notices_by(endpoint)
        if self._simulation.now > latest:
            raise LivenessFailure(f"the {endpoint.role.value} does not notice a half-open peer")
        if latest < NEVER:
            endpoint.process.expect_by(latest, lambda: self._expect_notice(endpoint))

    def _notices_by(self, endpoint: Endpoint) -> float:
        limits = self._plan.sides[endpoint.role].limits
        if not endpoint.is_reading:
            return self._simulation.now + 1.0
        process = endpoint.process
        start = max(self.cut_off[endpoint.role], endpoint.last_read, process.resumed_at)
        if endpoint.connection.state in (ConnectionState.HANDSHAKE, ConnectionState.AWAITING_HELLO):
            return endpoint.started_at + limits.handshake_timeout_s + self._slack_s
        latest = NEVER
        if self._timeout_s(endpoint) < NEVER:
            # A client of profile `zeebe` asks only once it has nothing else to write.
            is_asking = self._plan.version < 3 and endpoint.role is ConnectionRole.CLIENT
            asked = max(start, endpoint.last_wrote) if is_asking else start
            latest = asked + self._timeout_s(endpoint) + self._asks_every_s(endpoint)
        reader = endpoint.connection._reader
        if reader.is_mid_frame:
            patience_s = limits.frame_timeout_s + reader.frame_bytes / FRAME_BYTES_PER_S_MIN
            latest = min(latest, start + patience_s + limits.frame_timeout_s)
        return latest + self._slack_s
