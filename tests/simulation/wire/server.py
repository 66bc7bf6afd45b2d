"""The server: handles requests, each for its own time, so that replies leave in any order."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.testing import Simulation
from postroad.wire import (
    CancelFrame,
    ConnectionEvent,
    ConnectionState,
    DeadlineMap,
    GoodbyeFrame,
    ReplyFrame,
    RequestFrame,
)
from tests.simulation.wire.endpoint import Endpoint
from tests.simulation.wire.messages import Call, answer, refusal
from tests.simulation.wire.plan import Kind
from tests.simulation.wire.process import Process

HANDLER_TIMEOUT_S = 300.0
DRAIN_S = 3.0


class Server:
    def __init__(self, simulation: Simulation, process: Process, calls: Mapping[int, Call]) -> None:
        self._simulation = simulation
        self._process = process
        # Tells the service time of a request, which is no part of it.
        self._calls = calls
        self._work: dict[Endpoint, DeadlineMap[RequestFrame]] = {}

    def on_event(self, endpoint: Endpoint, event: ConnectionEvent) -> None:
        if isinstance(event, RequestFrame):
            self._on_request(endpoint, event)
        elif isinstance(event, CancelFrame):
            endpoint.log("cancelled", str(event.id))
            self._work_of(endpoint).pop(event.id)
        elif isinstance(event, GoodbyeFrame):
            endpoint.log("goodbye", f"from the client: {event.reason}")

    def on_closed(self, endpoint: Endpoint) -> None:
        self._work.pop(endpoint, None)

    def _work_of(self, endpoint: Endpoint) -> DeadlineMap[RequestFrame]:
        return self._work.setdefault(endpoint, DeadlineMap())

    def _on_request(self, endpoint: Endpoint, request: RequestFrame) -> None:
        endpoint.log("handles", f"{request.id} {request.subject}")
        call = self._calls.get(request.id)
        if request.one_way or call is None or call.job.kind is Kind.LOG:
            return
        if endpoint.connection.state is ConnectionState.DRAINING:
            endpoint.send(refusal(request))
            return
        allowed_s = request.timeout_ms / 1_000 or HANDLER_TIMEOUT_S
        now = self._simulation.now
        self._work_of(endpoint).add(request.id, request, now + allowed_s)
        if call.job.kind in (Kind.NOW, Kind.NONE):
            self._finish(endpoint, request, call)
        elif call.job.kind is not Kind.NEVER:
            self._process.at(
                now + call.job.service_s, lambda: self._finish(endpoint, request, call)
            )

    def _finish(self, endpoint: Endpoint, request: RequestFrame, call: Call) -> None:
        if endpoint.is_closed:
            return
        work = self._work_of(endpoint)
        for id, _ in work.pop_expired(self._simulation.now):
            endpoint.log("gives up", str(id))
        if work.pop(request.id) is not None:
            reply_bytes = min(call.job.reply_bytes, endpoint.connection.send_bytes_max)
            self._reply(endpoint, answer(request, call.job.kind, reply_bytes))

    def _reply(self, endpoint: Endpoint, reply: ReplyFrame) -> None:
        endpoint.log("reply", f"{reply.id} status {reply.status} {len(reply.payload)} bytes")
        endpoint.send(reply)
        endpoint.settle()

    def say_goodbye(self, endpoint: Endpoint) -> None:
        """Stop serving a connection: finish what is at work, refuse what comes."""
        if endpoint.is_closed:
            return
        endpoint.say_goodbye("stopping")
        self._process.at(self._simulation.now + DRAIN_S, lambda: endpoint.close("drained"))
