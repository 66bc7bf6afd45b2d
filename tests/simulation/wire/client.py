"""The client: dials, sends jobs, waits for replies by their deadlines, dials again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from postroad.core.errors import MessageTooLargeError
from postroad.testing import LivenessFailure, ScheduledAction, Simulation, require
from postroad.wire import (
    CancelFrame,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    DeadlineMap,
    GoodbyeFrame,
    ReplyFrame,
)
from tests.simulation.wire.endpoint import Endpoint
from tests.simulation.wire.messages import Call, End, check_reply
from tests.simulation.wire.plan import LATENESS_S_MAX, Job, Kind, Plan
from tests.simulation.wire.process import Process

REDIAL_S = 0.2
DRAIN_S = 3.0

Dial = Callable[[], Endpoint]


class Client:
    def __init__(
        self,
        simulation: Simulation,
        plan: Plan,
        process: Process,
        dial: Dial,
        ids: Callable[[], int],
    ) -> None:
        self.calls: dict[int, Call] = {}
        self.endpoint: Endpoint | None = None
        self._simulation = simulation
        self._plan = plan
        self._process = process
        self._dial = dial
        self._next_id = ids
        # Calls that wait for a connection, or for a place on it.
        self._queue: deque[Call] = deque()
        self._pending: DeadlineMap[Call] = DeadlineMap()
        self._timer: ScheduledAction | None = None

    def connect(self) -> None:
        if self.endpoint is None:
            self._simulation.log.add("client", "dials")
            self.endpoint = self._dial()

    # Calls.

    def submit(self, job: Job, *, is_probe: bool = False) -> None:
        call = Call(self._next_id(), job, self._simulation.now, is_probe=is_probe)
        self.calls[call.id] = call
        self._queue.append(call)
        if not call.is_one_way:
            self._pending.add(call.id, call, call.deadline)
            self._arm()
            self._expect_end(call)
            if job.cancel_after_s is not None:
                self._process.at(call.submitted_at + job.cancel_after_s, lambda: self._cancel(call))
        self._write_queue()

    def _write_queue(self) -> None:
        endpoint = self.endpoint
        if endpoint is None:
            return
        while self._queue and endpoint.is_usable and self._has_room(endpoint):
            call = self._queue.popleft()
            if call.end is None:
                self._write(endpoint, call)
        endpoint.settle()

    def _has_room(self, endpoint: Endpoint) -> bool:
        room = self._plan.sides[ConnectionRole.CLIENT].limits.requests_pending_max
        if endpoint.connection.peer is not None:
            room = min(room, endpoint.connection.peer.requests_pending_max)
        return len(self._in_flight(endpoint)) < room

    def _in_flight(self, endpoint: Endpoint) -> list[Call]:
        waiters = (call for call, _ in self._pending.entries.values())
        return [call for call in waiters if call.endpoint is endpoint]

    def _write(self, endpoint: Endpoint, call: Call) -> None:
        request = call.to_request(self._simulation.now)
        size = len(request.payload) + len(request.subject.encode())
        if size > endpoint.connection.send_bytes_max:
            self._pending.pop(call.id)
            self._end(call, End.TOO_LARGE, MessageTooLargeError.__name__)
            return
        call.endpoint = endpoint
        endpoint.log("request", f"{request.id} {request.subject} {len(request.payload)} bytes")
        endpoint.send(request)
        if call.is_one_way:
            self._end(call, End.SENT)

    def _end(self, call: Call, end: End, details: str = "") -> None:
        call.end = end
        self._simulation.log.add("client", end.value, f"{call.id} {details}")

    def _cancel(self, call: Call) -> None:
        if self._pending.pop(call.id) is not None:
            self._end(call, End.CANCELLED)
            self._tell_cancelled(call)
            self._write_queue()

    def _tell_cancelled(self, call: Call) -> None:
        endpoint = call.endpoint
        if endpoint is not None and endpoint is self.endpoint and not endpoint.is_closed:
            endpoint.send(CancelFrame(call.id))
            endpoint.settle()

    # Deadlines.

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pending:
            self._timer = self._process.at(self._pending.next_deadline, self._expire)

    def _expire(self) -> None:
        for _, call in self._pending.pop_expired(self._simulation.now):
            self._end(call, End.EXPIRED)
            require(call.deadline <= self._simulation.now, f"call {call.id} expired early")
            self._check_expiry(call)
            self._tell_cancelled(call)
        self._arm()
        self._write_queue()

    def _check_expiry(self, call: Call) -> None:
        """When nothing is wrong, only what is never answered may expire."""
        if (self._plan.is_calm or call.is_probe) and call.job.kind is not Kind.NEVER:
            raise LivenessFailure(f"call {call.id} was not answered, and nothing is wrong")

    def _expect_end(self, call: Call) -> None:
        def check() -> None:
            if call.end is None:
                raise LivenessFailure(f"call {call.id} has not ended by its deadline")

        self._process.expect_by(call.deadline + 3 * LATENESS_S_MAX, check)

    # What the connection tells.

    def on_event(self, endpoint: Endpoint, event: ConnectionEvent) -> None:
        if isinstance(event, ConnectionOpened):
            self._check_version(endpoint, event)
        elif isinstance(event, ReplyFrame):
            self._on_reply(endpoint, event)
        elif isinstance(event, GoodbyeFrame):
            endpoint.log("goodbye", f"from the server: {event.reason}")
        self._write_queue()
        self._close_when_drained(endpoint)

    def _check_version(self, endpoint: Endpoint, opened: ConnectionOpened) -> None:
        agreed = opened.version
        is_right = agreed == self._plan.version or endpoint.link.ledger.is_tainted
        require(is_right, f"version {agreed} was agreed, not {self._plan.version}")

    def _on_reply(self, endpoint: Endpoint, reply: ReplyFrame) -> None:
        call = self._pending.pop(reply.id)
        if endpoint.link.ledger.is_tainted:
            if call is not None:
                self._end(call, End.ANSWERED, "after a byte was changed")
            return
        if call is not None:
            check_reply(call, reply, self._plan.version)
            self._end(call, End.ANSWERED, f"status {reply.status}, {len(reply.payload)} bytes")
            return
        known = self.calls.get(reply.id)
        is_late = known is not None and known.end in (End.EXPIRED, End.CANCELLED)
        require(is_late, f"a reply that nobody waits for: {reply.id}, {known and known.end}")

    def _close_when_drained(self, endpoint: Endpoint) -> None:
        is_draining = endpoint.connection.state is ConnectionState.DRAINING
        if is_draining and not endpoint.is_closed and not self._in_flight(endpoint):
            endpoint.close("drained")

    def on_closed(self, endpoint: Endpoint) -> None:
        for call in self._in_flight(endpoint):
            self._pending.pop(call.id)
            self._end(call, End.CLOSED)
            is_lost = call.is_probe or self._plan.is_calm
            require(not is_lost, f"call {call.id} was lost, and nothing is wrong")
        if endpoint is self.endpoint:
            self.endpoint = None
            self._process.at(self._simulation.now + REDIAL_S, self.connect)

    # What it does on its own.

    def say_goodbye(self) -> None:
        """Close gracefully; the next job dials again."""
        endpoint = self.endpoint
        if endpoint is None:
            return
        endpoint.say_goodbye("closing")
        self._close_when_drained(endpoint)
        self._process.at(
            self._simulation.now + DRAIN_S, lambda: endpoint.close("drained long enough")
        )

    def start_over(self) -> None:
        """Close a connection that nobody can know to be useless."""
        if self.endpoint is None:
            return
        link = self.endpoint.link
        link.heal()
        if link.cut_off or link.ledger.is_tainted:
            self.endpoint.close("useless")
