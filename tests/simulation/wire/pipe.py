"""One direction of a connection: bytes in order, cut anywhere, late, and sometimes not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from postroad.testing import Simulation
from tests.simulation.wire.plan import Cut


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
