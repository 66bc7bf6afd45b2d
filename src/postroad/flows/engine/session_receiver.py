"""Takes what other nodes say to flows out of the mail, and finds the flows it is for."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial

from postroad.core import fault_points as faults
from postroad.core.errors import Reject, StoreError
from postroad.core.tracing import SpanLike
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.consumers.prefetch import QueuedMessage
from postroad.durable.producer import OutgoingMessage
from postroad.flows.definition import FlowDefinition
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms
from postroad.flows.engine.engine import FlowEngine
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

# So many letters are taken up before others have their turn.
_MESSAGES_PER_TURN = 64
_SEED_BYTES = 16


class SessionReceiver:
    """The letters of flows, from the inbox to the machines."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self._lookups: set[asyncio.Task[None]] = set()
        self._dispatcher: QueueDispatcher | None = None

    async def start(self) -> None:
        """Begin to take letters."""
        queues = self._engine.queues
        self._dispatcher = await queues.dispatchers.open(QUEUE)
        self._engine.mutations.dispatcher = self._dispatcher
        # What a flow makes of a letter is in the same commit as the letter, if it is in memory.
        self._engine.store.writer.precommit.inline_queues.add(QUEUE)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(self._dispatcher), name="postroad flows")

    async def stop(self) -> None:
        """Take no more; letters stay where they are."""
        if self._task is not None:
            tasks = [self._task, *self._lookups]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Let the queue go, when everything that was taken is committed or put back."""
        if self._dispatcher is not None:
            self._engine.store.writer.precommit.inline_queues.discard(QUEUE)
            await self._dispatcher.close()
            self._engine.queues.dispatchers.release(QUEUE)

    async def _run(self, dispatcher: QueueDispatcher) -> None:
        in_a_row = 0
        while True:
            entry = dispatcher.next_message()
            if entry is None:
                await dispatcher.wait()
                in_a_row = 0
                continue
            try:
                self._dispatch(dispatcher, entry)
            except Reject as error:
                dispatcher.nack(entry, error)
            except Exception as error:
                logger.exception("a letter to a flow could not be taken up")
                dispatcher.nack(entry, error)
            in_a_row += 1
            if in_a_row >= _MESSAGES_PER_TURN:
                in_a_row = 0
                await asyncio.sleep(0)

    def _dispatch(self, dispatcher: QueueDispatcher, entry: QueuedMessage) -> None:
        envelope = decode_session_envelope(entry.message.body)
        peer = entry.location.sender
        RECEIVED.hit(peer=peer)
        key = envelope.key
        if envelope.is_for_initiator:
            event = SessionMessagesReceived(key.number, envelope.messages, entry, peer)
            self._engine.dispatch(key.flow, event)
            return
        responder = self._engine.responders.get((peer, key.flow, key.number))
        if responder is not None:
            event = SessionMessagesReceived(0, envelope.messages, entry, peer)
            self._engine.dispatch(responder, event)
        elif isinstance(envelope.messages[0], SessionInit):
            self._start_responder(dispatcher, entry, envelope, envelope.messages[0])
        else:
            task = asyncio.get_running_loop().create_task(
                self._find_responder(dispatcher, entry, envelope)
            )
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)

    async def _find_responder(
        self, dispatcher: QueueDispatcher, entry: QueuedMessage, envelope: SessionEnvelope
    ) -> None:
        """Find the flow that responds to a session, among those that are not in memory."""
        peer = entry.location.sender
        origin = InitiatingSession(peer, envelope.key, "", 1, "")
        try:
            responder = await self._engine.store.read(tables.find_responder, origin)
        except asyncio.CancelledError:
            dispatcher.requeue(entry)
            raise
        except StoreError as error:
            dispatcher.nack(entry, error)
            return
        if responder is None:
            logger.debug("%s speaks in a session that nobody has here", peer)
            dispatcher.ack(entry)
        else:
            event = SessionMessagesReceived(0, envelope.messages, entry, peer)
            self._engine.dispatch(responder, event)

    def _start_responder(
        self,
        dispatcher: QueueDispatcher,
        entry: QueuedMessage,
        envelope: SessionEnvelope,
        initial: SessionInit,
    ) -> None:
        """Somebody opens a session: have a flow respond to it, or tell why not."""
        engine, peer = self._engine, entry.location.sender
        definition = engine.registry.find_responder(initial.flow)
        rejection = definition and definition.rejection_reason(initial.flow, initial.version)
        if rejection:
            self._reject(dispatcher, entry, envelope, rejection)
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
                "%s opens a session of flow %r, and nothing here responds to it: it is kept",
                peer, initial.flow,
            )  # fmt: skip
        span = start_responder_span(engine.store.owner, state.name, entry)
        store_trace(state, span)
        done = engine.start_flow(state, FlowAdmitted(envelope.messages, entry))
        # What came of it is known to the engine; nobody waits here.
        done.add_done_callback(partial(_end, span))

    def _status(self, definition: FlowDefinition[..., object] | None) -> FlowStatus:
        if definition is None or self._engine.admission.is_draining:
            return FlowStatus.HELD
        return (
            FlowStatus.RUNNING
            if self._engine.admission.slots.free(definition)
            else FlowStatus.QUEUED
        )

    def _reject(
        self,
        dispatcher: QueueDispatcher,
        entry: QueuedMessage,
        envelope: SessionEnvelope,
        text: str,
    ) -> None:
        """Tell the other end that nobody will talk to it, in one commit with its letter."""
        error_id = digest(os.urandom(8)).hex()
        reply = SessionEnvelope(envelope.key, True, [SessionReject(text, error_id)])
        key = f"{envelope.key.flow:x}.{envelope.key.number:x}"
        encoder = self._engine.queues.encoder
        message = encoder.encode(
            OutgoingMessage(
                queue=QUEUE, body=encode_session_envelope(reply), to=entry.location.sender, key=key
            )
        )
        REJECTED.hit(peer=entry.location.sender)
        disposition = dispatcher.prepare_ack(entry, [message])
        if disposition is not None:
            dispatcher.submit(disposition)


def _end(span: SpanLike, done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is None:
        # Otherwise the letter comes again.
        span.end()
