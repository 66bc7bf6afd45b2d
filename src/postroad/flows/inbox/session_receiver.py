"""Receives session messages of other flows, and dispatches them to the flows of this node.

Which flow gets a message: that of the session which the envelope names, the initiator by its id,
the responder by the session's key (`dispatch`); the first message starts the responder. The engine
loads the flow if it is not in memory, and its state machine wakes the code that waits:
`FlowStateMachine._try_complete` takes the message out of the session and resumes the code.
Signals get to their flow by its id or client id: `FlowAdmin.signal`, `RequestReceiver._signal`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial

from postroad.core import fault_points as faults
from postroad.core.tracing import SpanLike
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.durable.producer import OutgoingMessage
from postroad.flows.definition import FlowDefinition
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.inbox.queue_receiver import QueueReceiver
from postroad.flows.machine.events import FlowAdmitted, SessionMessagesReceived
from postroad.flows.machine.state import FlowState, InitiatingSession
from postroad.flows.machine.status import FlowStatus
from postroad.flows.machine.values import digest
from postroad.flows.sessions.messages import (
    QUEUE,
    SessionEnvelope,
    SessionInit,
    SessionReject,
    decode_session_envelope,
    encode_session_envelope,
)
from postroad.flows.tracing import start_responder_span, store_trace

logger = logging.getLogger("postroad.flows")

RECEIVED = faults.declare_fault_point("flows.session.received")
REJECTED = faults.declare_fault_point("flows.session.rejected")

_SEED_BYTES = 16


class SessionReceiver(QueueReceiver):
    """Receives the session messages of other flows."""

    def __init__(self, engine: FlowEngine) -> None:
        super().__init__(engine, QUEUE)

    def dispatch(self, entry: QueuedMessage) -> None:
        """Dispatch an envelope of a session to its flow."""
        envelope = decode_session_envelope(entry.message.body)
        peer = entry.location.sender
        RECEIVED.hit(peer=peer)
        key = envelope.key
        if envelope.is_for_initiator:
            event = SessionMessagesReceived(key.number, envelope.messages, entry, peer)
            self.engine.dispatch(key.flow, event)
            return
        responder = self.engine.responders.get((peer, key.flow, key.number))
        if responder is not None:
            event = SessionMessagesReceived(0, envelope.messages, entry, peer)
            self.engine.dispatch(responder, event)
        elif isinstance(envelope.messages[0], SessionInit):
            self._start_responder(entry, envelope, envelope.messages[0])
        else:
            self.look_up(entry, self._find_responder, envelope)

    async def _find_responder(self, entry: QueuedMessage, envelope: SessionEnvelope) -> None:
        """Find the flow that responds to a session, if it is not in memory."""
        peer = entry.location.sender
        origin = InitiatingSession(peer, envelope.key, "", 1, "")
        responder = await self.engine.store.read(tables.find_responder, origin)
        if responder is None:
            logger.debug("message of %s ignored: its session does not exist", peer)
            self.dispatcher.ack(entry)
        else:
            event = SessionMessagesReceived(0, envelope.messages, entry, peer)
            self.engine.dispatch(responder, event)

    def _start_responder(
        self, entry: QueuedMessage, envelope: SessionEnvelope, initial: SessionInit
    ) -> None:
        """Start the responder of a new session, or reject the session."""
        engine, peer = self.engine, entry.location.sender
        definition = engine.registry.find_responder(initial.flow)
        rejection = definition and definition.rejection_reason(initial.flow, initial.version)
        if rejection:
            self._reject(entry, envelope, rejection)
            return
        now = now_ms()
        state = FlowState(
            id=engine.new_id(),
            name=initial.flow if definition is None else definition.name,
            version=1 if definition is None else definition.version,
            status=self._status(definition),
            seed=os.urandom(_SEED_BYTES),
            started_ms=now,
            initiated_by=InitiatingSession(
                peer, envelope.key, initial.flow, initial.version, initial.app
            ),
        )
        if definition is not None and definition.timeout_s is not None:
            state.deadline_ms = now + round(definition.timeout_s * 1000)
        if definition is None:
            logger.warning(
                "%s opens a session of flow %r, which has no responder on this node: it is held",
                peer, initial.flow,
            )  # fmt: skip
        span = start_responder_span(engine.store.owner, state.name, entry)
        store_trace(state, span)
        done = engine.start_flow(state, FlowAdmitted(envelope.messages, entry))
        # The engine handles the result; nothing waits here.
        done.add_done_callback(partial(end_span, span))

    def _status(self, definition: FlowDefinition[..., object] | None) -> FlowStatus:
        if definition is None or self.engine.admission.is_draining:
            return FlowStatus.HELD
        return (
            FlowStatus.RUNNING
            if self.engine.admission.slots.free(definition)
            else FlowStatus.QUEUED
        )

    def _reject(self, entry: QueuedMessage, envelope: SessionEnvelope, text: str) -> None:
        """Reject a session, in one commit with its message."""
        error_id = digest(os.urandom(8)).hex()
        reply = SessionEnvelope(envelope.key, True, [SessionReject(text, error_id)])
        key = f"{envelope.key.flow:x}.{envelope.key.number:x}"
        encoder = self.engine.queues.encoder
        message = encoder.encode(
            OutgoingMessage(
                queue=QUEUE, body=encode_session_envelope(reply), to=entry.location.sender, key=key
            )
        )
        REJECTED.hit(peer=entry.location.sender)
        disposition = self.dispatcher.prepare_ack(entry, [message])
        if disposition is not None:
            self.dispatcher.submit(disposition)


def end_span(span: SpanLike, done: asyncio.Future[None]) -> None:
    """End the span of a flow that was to start."""
    if not done.cancelled() and done.exception() is None:
        # Otherwise the message is redelivered.
        span.end()
