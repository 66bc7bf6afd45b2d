"""Starts, signals and cancels flows for transactions and other flows, in one commit each."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from postroad.core.errors import ConfigError, Reject, UsageError
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.flows.engine import tables
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.errors import FlowError
from postroad.flows.inbox.queue_receiver import QueueReceiver
from postroad.flows.inbox.requests import QUEUE, check_client_id, decode_request
from postroad.flows.inbox.session_receiver import end_span
from postroad.flows.machine import values
from postroad.flows.machine.events import FlowAdmitted, FlowCancelRequested, SignalReceived
from postroad.flows.machine.requests import (
    CancelRequest,
    ChildEnded,
    ChildOutcome,
    SignalRequest,
    StartRequest,
    child_signal,
)
from postroad.flows.machine.state import FlowState, is_flow_id, parse_flow_id
from postroad.flows.tracing import start_responder_span, store_trace


class RequestReceiver(QueueReceiver):
    """Receives the requests of transactions."""

    def __init__(self, engine: FlowEngine) -> None:
        super().__init__(engine, QUEUE)

    def dispatch(self, entry: QueuedMessage) -> None:
        """Start or signal a flow, once the store was asked for it."""
        sender = entry.location.sender
        if sender != self.engine.store.owner:
            raise Reject(f"{sender!r} cannot start or signal flows of this node by a message")
        request = decode_request(entry.message.body)
        match request:
            case StartRequest():
                self.look_up(entry, self._start, request)
            case SignalRequest():
                self.look_up(entry, self._signal, request)
            case CancelRequest():
                self.look_up(entry, self._cancel, request)
            case ChildEnded():
                self.look_up(entry, self._on_child_ended, request)

    async def _start(self, entry: QueuedMessage, request: StartRequest) -> None:
        try:
            await self._start_or_reject(entry, request)
        except Reject as rejection:
            if not request.parent:
                raise
            # The parent would wait for ever.
            error = values.record_error(FlowError(str(rejection)))
            outcome = ChildOutcome(None, error)
            await self._on_child_ended(
                entry, ChildEnded(request.parent, request.client_id, outcome)
            )

    async def _start_or_reject(self, entry: QueuedMessage, request: StartRequest) -> None:
        engine, client_id = self.engine, request.client_id
        definition = engine.registry.find(request.flow)
        if definition is None:
            raise Reject(f"this node has no flow {request.flow!r}")
        try:
            check_client_id(client_id)
            engine.registry.check_startable(definition)
        except (ConfigError, UsageError) as error:
            raise Reject(str(error)) from None
        async with engine.admission.starting(client_id):
            if await engine.store.read(tables.find_by_client_id, client_id) is not None:
                self.dispatcher.ack(entry)
                return
            state = engine.admission.new_state(
                definition, request.arguments, client_id, can_hold=True
            )
            if request.parent:
                state.parent = request.parent
            span = start_responder_span(engine.store.owner, state.name, entry)
            store_trace(state, span)
            done = engine.start_flow(state, FlowAdmitted(ack_token=entry))
            done.add_done_callback(partial(end_span, span))
            # From here on the engine owns the message, also if this task is cancelled.
            with suppress(asyncio.CancelledError):
                await asyncio.wait((done,))

    async def _signal(self, entry: QueuedMessage, request: SignalRequest) -> None:
        engine = self.engine
        async with engine.admission.starting(request.flow):
            state = await self._find(request.flow)
        if state is None or state.is_ended:
            problem = "is not known" if state is None else f"has ended: it is {state.status}"
            raise Reject(f"signal {request.name!r}: flow {request.flow!r} {problem}")
        definition = engine.machines.definition_of(state)
        try:
            if definition is not None:
                definition.check_signal(request.name, request.payload)
        except UsageError as error:
            raise Reject(str(error)) from None
        engine.dispatch(state.id, SignalReceived(request.name, request.payload, entry))

    async def _cancel(self, entry: QueuedMessage, request: CancelRequest) -> None:
        async with self.engine.admission.starting(request.flow):
            state = await self._find(request.flow)
        if state is None or state.is_ended:
            self.dispatcher.ack(entry)
        else:
            self.engine.dispatch(state.id, FlowCancelRequested(request.reason, entry))

    async def _on_child_ended(self, entry: QueuedMessage, request: ChildEnded) -> None:
        state = await self._find(request.parent)
        if state is None or state.is_ended:
            self.dispatcher.ack(entry)
            return
        name = child_signal(request.child)
        payload = values.encode_value(request.outcome, "the outcome of a child")
        self.engine.dispatch(state.id, SignalReceived(name, payload, entry, is_child_end=True))

    async def _find(self, flow: str) -> FlowState | None:
        """Return the flow with this client id or id."""
        store = self.engine.store
        state = await store.read(tables.find_by_client_id, flow)
        if state is None and is_flow_id(flow):
            state = await store.read(tables.read_state, parse_flow_id(flow))
        return state
