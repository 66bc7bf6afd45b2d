"""One side of a connection: drives its machine the way the network layer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from postroad.core.errors import RemoteProtocolError
from postroad.core.limits import KIB, SUBJECT_BYTES_MAX
from postroad.testing import SafetyFailure, ScheduledAction, Simulation, require
from postroad.wire import (
    NEVER,
    CancelFrame,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    Frame,
    FrameIgnored,
    GoodbyeFrame,
    ReplyFrame,
    RequestFrame,
    WireConfig,
    WireConnection,
)

if TYPE_CHECKING:
    from tests.simulation.wire.link import Link
    from tests.simulation.wire.process import Process

# A reader may hold a frame with its subject and header, in a buffer that has grown to fit.
OVERHEAD_BYTES_MAX = SUBJECT_BYTES_MAX + 256 * KIB


class Application(Protocol):
    def on_event(self, endpoint: Endpoint, event: ConnectionEvent) -> None:
        """The machine told something."""

    def on_closed(self, endpoint: Endpoint) -> None:
        """The connection is over."""


class Endpoint:
    def __init__(
        self,
        simulation: Simulation,
        process: Process,
        link: Link,
        role: ConnectionRole,
        config: WireConfig,
        application: Application,
        *,
        next_id: Callable[[], int],
        certificate_names: frozenset[str] | None,
    ) -> None:
        self.role = role
        self.link = link
        self.process = process
        self.connection = WireConnection(
            role, config, simulation.now, next_id=next_id, certificate_names=certificate_names
        )
        self.opened_at: float | None = None
        self.started_at = self.last_read = self.last_wrote = simulation.now
        self.is_closed = False
        self.is_reading = True
        # Where the machine stood before the last call, which tells why it gave up.
        self.phase_before = self.connection.state
        self._simulation = simulation
        self._application = application
        self._bytes_max = config.limits.frame_bytes_max + OVERHEAD_BYTES_MAX
        self._timer: ScheduledAction | None = None

    @property
    def is_usable(self) -> bool:
        return not self.is_closed and self.connection.state is ConnectionState.OPEN

    def log(self, verb: str, details: str = "") -> None:
        self._simulation.log.add(self.role.value, verb, f"#{self.link.number} {details}")

    # The receiving end of a pipe.

    def can_read(self) -> bool:
        return self.is_reading and not self.process.is_paused

    def receive(self, data: bytes) -> None:
        if self.is_closed:
            return
        self.log("read", f"{len(data)} bytes")
        self.last_read = self._simulation.now
        self.phase_before = self.connection.state
        events = self._take(data)
        self._check_memory()
        for event in events:
            self._dispatch(event)
        self.settle()

    def _take(self, data: bytes) -> list[ConnectionEvent]:
        """Read into the room of a large frame as long as there is one."""
        machine, now = self.connection, self._simulation.now
        events: list[ConnectionEvent] = []
        while data and (room := machine.receive_buffer()) is not None:
            size = min(len(room), len(data))
            room[:size] = data[:size]
            events += machine.buffer_updated(size, now)
            data = data[size:]
        return events + machine.receive_data(data, now) if data else events

    def _check_memory(self) -> None:
        """What is kept of an incomplete frame is within the limit of a frame."""
        reader = self.connection._reader
        parts = (getattr(reader, name) for name in reader.__slots__)
        held = sum(len(part) for part in parts if isinstance(part, bytes | bytearray))
        is_within = held <= self._bytes_max or self.connection.failure is not None
        require(is_within, f"the {self.role.value} holds {held} bytes of a frame")

    def receive_end(self) -> None:
        self.process.do(lambda: self.close("the other side closed"))

    def _dispatch(self, event: ConnectionEvent) -> None:
        if isinstance(event, ConnectionOpened):
            require(self.opened_at is None, "a connection opened twice")
            self.opened_at = self._simulation.now
            self.log("opened", f"version {event.version}")
        elif isinstance(event, FrameIgnored):
            require(self.link.ledger.is_tainted, f"a frame was ignored: {event}")
        else:
            self._check_delivery(event)
        if not self.is_closed:
            self._application.on_event(self, event)

    def _check_delivery(self, event: ConnectionEvent) -> None:
        self.link.ledger.check(self.role, event)
        if not isinstance(event, GoodbyeFrame):
            kind = type(event).__name__
            require(self.opened_at is not None, f"a {kind} was delivered before the hello")

    # Sending.

    def send(self, frame: Frame) -> None:
        """Queue a frame of the application; `settle` writes it."""
        machine = self.connection
        if isinstance(frame, RequestFrame):
            one_way = frame.one_way
            machine.request(frame.id, frame.subject, frame.payload, frame.timeout_ms, one_way)
        elif isinstance(frame, ReplyFrame):
            machine.reply(frame.id, frame.status, frame.payload, frame.code, frame.retryable)
        elif isinstance(frame, CancelFrame):
            machine.cancel(frame.id)
        elif isinstance(frame, GoodbyeFrame):
            machine.goodbye(frame.reason, frame.code)
        if machine.version >= 3 or isinstance(frame, RequestFrame | ReplyFrame):
            self.link.record(self.role.opposite, frame)
        self.last_wrote = self._simulation.now

    def say_goodbye(self, reason: str) -> None:
        """Begin to close; a connection that is not open yet ends at once."""
        self.log("goodbye", f"to the {self.role.opposite.value}")
        self.send(GoodbyeFrame(0, reason))
        self.settle()
        if self.connection.state is ConnectionState.CLOSED:
            self.close("before it was open")

    def settle(self) -> None:
        """Write what is queued, look for a failure, and set the timer anew."""
        if self.is_closed:
            return
        machine = self.connection
        for data in machine.data_to_send(self._simulation.now):
            self.link.pipes[self.role.opposite].write(data)
        if machine.failure is not None:
            self._give_up(machine.failure)
        else:
            self._arm(machine.deadline())

    def _give_up(self, failure: RemoteProtocolError) -> None:
        self.log("failed", f"{type(failure).__name__}: {failure}")
        if not isinstance(failure, RemoteProtocolError):
            raise SafetyFailure(f"a machine failed with {failure!r}")
        require(self.connection.deadline() == NEVER, "a machine that failed wants to be called")
        if self.connection.version >= 3:
            self.link.record(self.role.opposite, GoodbyeFrame(failure.code, str(failure)))
        self.link.judge_failure(self, failure)
        self.close("failed")

    def close(self, why: str) -> None:
        """End this side; the other learns it after all that was written."""
        if self.is_closed:
            return
        self.log("closed", why)
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.process.readers.remove(self.link.pipes[self.role].pump)
        self.link.pipes[self.role.opposite].finish()
        self._application.on_closed(self)

    # Time.

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if deadline < NEVER:
            self._timer = self.process.at(deadline, self._tick)

    def _tick(self) -> None:
        if not self.is_closed:
            self.phase_before = self.connection.state
            self.connection.tick(self._simulation.now)
            self.settle()

    # Back-pressure.

    def stop_reading(self, seconds: float) -> None:
        if self.is_reading and not self.is_closed:
            self.log("slow", f"reads nothing for {seconds:.3f} s")
            self.is_reading = False
            self.connection.pause_reading()
            self.settle()
            self.process.at(self._simulation.now + seconds, self._read_on)

    def _read_on(self) -> None:
        self.is_reading = True
        if not self.is_closed:
            self.log("reads on")
            self.last_read = self._simulation.now
            self.connection.resume_reading(self._simulation.now)
            self.settle()
            self.link.pipes[self.role].pump()
