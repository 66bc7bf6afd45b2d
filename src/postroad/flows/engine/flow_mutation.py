"""One transition of a flow as one mutation of the store: history, sends, consumed messages.

In one commit are the result of a step, its rows and its sends:
`StepExecutor._attempt_transaction` (step_executor.py) opens a `StepTransaction` and runs the step
in it; `FlowEngine.commit` (engine.py) makes one `FlowMutation` of history and sends, and finishes
the transaction with it; `SavepointTransaction.apply_and_release` (durable/store/savepoints.py)
calls `FlowMutation.apply` within the savepoint that the rows are in; `GroupCommitWriter._finish`
(durable/store/writer.py) commits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from postroad.core import tracing
from postroad.core.errors import (
    ConfigError,
    IdempotencyConflictError,
    PostroadError,
    TransactionAbortedError,
    UsageError,
)
from postroad.core.tracing import SpanKind, SpanLike
from postroad.durable import DurableQueues, Transaction
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.producer import EncodedMessage, OutgoingMessage, append_sends, check_sends
from postroad.durable.store.backends.backend import DatabaseRow
from postroad.durable.store.mutations import Mutation
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.engine import tables
from postroad.flows.inbox.requests import request_message
from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.events import CommitRejection, FlowTransition
from postroad.flows.machine.history import Position
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.sessions.messages import (
    QUEUE,
    SessionEnvelope,
    SessionError,
    SessionMessage,
    SessionReject,
    encode_session_envelope,
)
from postroad.flows.sessions.session import SessionEndpoint
from postroad.flows.tracing import record_commit_spans, start_child_span, trace_headers

if TYPE_CHECKING:
    from postroad.flows.engine.loaded_flow import LoadedFlow

# Errors that the same statements and sends meet in each attempt.
_PERMANENT_ERRORS = (UsageError, IdempotencyConflictError)


class FlowCommitSequence:
    """Marks the mutations of one flow as aborted once one of them failed to commit."""

    __slots__ = ("is_aborted",)

    def __init__(self) -> None:
        self.is_aborted = False


class FlowMutation(Mutation):
    """A transition of a flow: history, consumed messages and sends, all of it or nothing.

    Attributes:
        preceding: mutations that come before it, where it is committed by a transaction.
        steps_to_run: steps to start when it is durable.
        is_duplicate: whether it would start a flow that exists already.
        is_counted: whether the flow counts as running once it is durable.
        is_finished: whether it is durable, or will never be.
    """

    __slots__ = (
        "_buffered",
        "_dispositions",
        "_node",
        "_on_committed",
        "_row",
        "_sends",
        "_sequence",
        "_spans",
        "flow",
        "is_counted",
        "is_duplicate",
        "is_finished",
        "preceding",
        "state",
        "steps_to_run",
        "transition",
    )

    def __init__(
        self,
        state: FlowState,
        transition: FlowTransition,
        sequence: FlowCommitSequence,
        *,
        has_stored_buffer: bool,
        sends: Sequence[EncodedMessage],
        dispositions: Sequence[DispositionMutation],
        on_committed: Callable[[FlowMutation, Exception | None], None],
        node: str = "",
        spans: Sequence[SpanLike] = (),
    ) -> None:
        super().__init__()
        self.preceding: list[FlowMutation] = []
        self.flow = state.id
        # The state after this transition; it may have changed again by the time of the commit.
        self.state = state
        self._row: DatabaseRow | None = (
            tables.state_row(state) if transition.is_state_changed else None
        )
        self._buffered: list[DatabaseRow] = []
        if transition.buffered or transition.signals:
            self._buffered = [
                *(
                    tables.buffered_message_row(state.id, number, message)
                    for number, message in transition.buffered
                ),
                *(tables.buffered_signal_row(state.id, signal) for signal in transition.signals),
            ]
        self.transition = transition
        self._sequence = sequence
        self._sends = sends
        self._dispositions = dispositions
        self._on_committed = on_committed
        # Spans to be recorded once it is durable, and the parent of those of its sends.
        self._node = node
        self._spans = spans
        self.steps_to_run: list[FlowCommand] = transition.steps_to_run
        self.is_duplicate = False
        self.is_counted = False
        self.is_finished = False
        if transition.is_ended:
            transition.clears_buffer = has_stored_buffer

    def apply(self, stored: StoreTables) -> None:
        group: Sequence[FlowMutation] = (self,)
        dispositions, sends = self._dispositions, self._sends
        if self.preceding:
            group = (*self.preceding, self)
            dispositions = self._all_dispositions()
            sends = [message for mutation in group for message in mutation._sends]
        if self._sequence.is_aborted or any(disposition.is_lost for disposition in dispositions):
            self._fence(dispositions)
            raise TransactionAbortedError("what comes before this step could not be committed")
        try:
            if self._buffered and self._row is None:
                tables.check_known(stored.database, self.flow)
            duplicates = check_sends(stored, sends) if sends else ()
        except PostroadError:
            self._fence(dispositions)
            raise
        for disposition in dispositions:
            disposition.write(stored)
        for mutation in group:
            mutation._write(stored)
        if sends and not self.is_duplicate:
            append_sends(stored, sends, duplicates)

    def fail(self, error: Exception) -> None:
        self._fence(self._all_dispositions())
        super().fail(error)

    def _all_dispositions(self) -> list[DispositionMutation]:
        return [
            disposition
            for mutation in (*self.preceding, self)
            for disposition in mutation._dispositions
        ]

    def _fence(self, dispositions: Sequence[DispositionMutation]) -> None:
        """Abort all later mutations of this flow."""
        self._sequence.is_aborted = True
        for disposition in dispositions:
            disposition.abort_successors()

    def _write(self, stored: StoreTables) -> None:
        database, transition, flow = stored.database, self.transition, self.flow
        if transition.is_new:
            origin = self.state.initiated_by
            if origin is not None and tables.find_responder(database, origin) is not None:
                self.is_duplicate = True
                return
            assert self._row is not None
            tables.insert_state(database, self._row)
        elif self._row is not None:
            tables.update_state(database, self._row, with_arguments=transition.clears_history)
        if transition.clears_history:
            tables.delete_steps(database, flow)
            tables.delete_buffered_of(database, flow, with_signals=False)
        if transition.entries:
            tables.insert_steps(database, flow, transition.first, transition.entries)
        if self._buffered:
            tables.insert_buffered(database, self._buffered)
        if transition.clears_buffer:
            tables.delete_buffered_of(database, flow, with_signals=True)
        elif transition.consumed_ids:
            tables.delete_buffered(database, transition.consumed_ids)

    def on_complete(self, error: Exception | None) -> None:
        self.is_finished = True
        for mutation in self.preceding:
            mutation.on_complete(error)
        for disposition in self._dispositions:
            disposition.on_complete(error)
        if error is None and tracing.tracer is not None and not self.is_duplicate:
            self._record_spans()
        self._on_committed(self, error)

    def _record_spans(self) -> None:
        for span in self._spans:
            span.end()
        received = [entry for disposition in self._dispositions for entry in disposition.finished]
        record_commit_spans(self._node, self.state, self.transition, received)


class CommitRejections:
    """Rejections of steps by the store: such steps fail when their flow requests them again.

    Without that they would be run again and again: what they did is undone, and so is what the
    flow knows of them.
    """

    def __init__(self) -> None:
        self._rejections: dict[int, dict[Position, CommitRejection]] = {}

    def of(self, flow: int) -> dict[Position, CommitRejection]:
        """Return the rejections of a flow by position, of which a step removes its own."""
        return self._rejections.get(flow, {})

    def record(self, mutation: FlowMutation, position: Position) -> None:
        """Record the result of a step with statements or sends."""
        error, rejections = mutation.error, self._rejections.pop(mutation.flow, {})
        before = rejections.pop(position, None)
        is_final = not isinstance(error, PostroadError) or isinstance(error, _PERMANENT_ERRORS)
        if error is not None and is_final:
            rejections[position] = CommitRejection(
                error, 1 if before is None else before.failures + 1
            )
        if rejections:
            self._rejections[mutation.flow] = rejections

    def discard(self, flow: int) -> None:
        """Drop the rejections of a flow that has ended."""
        self._rejections.pop(flow, None)


# Bytes of an envelope besides its payload: mostly names of flows and applications.
_ENVELOPE_BYTES = 2_048
_MESSAGE_BYTES = 64
_ENVELOPE_BYTES_MIN = 1_024

OnFlowCommitted = Callable[[FlowMutation, Exception | None], None]


class FlowMutationBuilder:
    """Builds mutations of the transitions of state machines.

    Attributes:
        dispatchers: by queue, what the inbox messages are from.
        payload_max: size of the largest thing a flow may send.
    """

    def __init__(self, queues: DurableQueues) -> None:
        self._encoder = queues.encoder
        self._next_buffer_id = itertools.count(1).__next__
        self.dispatchers: dict[str, QueueDispatcher] = {}
        size = queues.config.message_bytes_max
        if size < _ENVELOPE_BYTES_MIN:
            raise ConfigError(
                f"message_bytes_max={size} of the queues is too little for flows: they need "
                f"{_ENVELOPE_BYTES_MIN}"
            )
        self.payload_max = size - min(_ENVELOPE_BYTES, size // 2)

    def set_next_id(self, first: int) -> None:
        """Set the next id of buffered messages."""
        self._next_buffer_id = itertools.count(first).__next__

    def build(
        self,
        loaded: LoadedFlow,
        machine: FlowStateMachine,
        transition: FlowTransition,
        tx: Transaction | None,
        on_committed: OnFlowCommitted,
    ) -> FlowMutation:
        """Build the mutation of a transition, with the transaction of a step."""
        for _, buffered in transition.buffered:
            buffered.id = self._next_buffer_id()
        for signal in transition.signals:
            signal.id = self._next_buffer_id()
        sends = [] if tx is None else list(tx.sends)
        spans: list[SpanLike] = []
        for number, messages in transition.outgoing.items():
            endpoint = machine.sessions.by_number[number]
            name = f"say {machine.state.name}"
            span = start_child_span(
                self._encoder.node, machine.state, name, SpanKind.PRODUCER, peer=endpoint.peer
            )
            spans.append(span)
            sends += self._envelopes(endpoint, messages, trace_headers(span))
        sends += [self._encoder.encode(request_message(request)) for request in transition.requests]
        dispositions: Sequence[DispositionMutation] = ()
        if transition.ack_tokens:
            dispositions = self._finish(transition)
            if len(dispositions) < len(transition.ack_tokens):
                # Its messages are redelivered, so it must not be committed.
                loaded.sequence.is_aborted = True
        return FlowMutation(
            machine.state,
            transition,
            loaded.sequence,
            has_stored_buffer=machine.sessions.has_stored_buffer,
            sends=sends,
            dispositions=dispositions,
            on_committed=on_committed,
            node=self._encoder.node,
            spans=spans,
        )

    def _finish(self, transition: FlowTransition) -> list[DispositionMutation]:
        """Return the dispositions of consumed messages, except those that are redelivered."""
        dispositions: list[DispositionMutation] = []
        for ack_token in transition.ack_tokens:
            assert isinstance(ack_token, QueuedMessage)
            dispatcher = self._dispatcher_of(ack_token)
            disposition = dispatcher.prepare_ack(ack_token)
            if disposition is not None:
                dispatcher.track(disposition)
                dispositions.append(disposition)
        return dispositions

    def _envelopes(
        self,
        endpoint: SessionEndpoint,
        messages: list[SessionMessage],
        headers: Mapping[str, str] | None,
    ) -> list[EncodedMessage]:
        """Return the messages of one session in as few envelopes as possible."""
        batches: list[list[SessionMessage]] = [[]]
        size = 0
        for message in messages:
            if isinstance(message, SessionError | SessionReject):
                message = _shorten(message, self.payload_max - _MESSAGE_BYTES)
            more = _size_of(message)
            if batches[-1] and size + more > self.payload_max:
                batches.append([])
                size = 0
            batches[-1].append(message)
            size += more
        return [self._envelope(endpoint, batch, headers) for batch in batches]

    def _envelope(
        self,
        endpoint: SessionEndpoint,
        batch: list[SessionMessage],
        headers: Mapping[str, str] | None,
    ) -> EncodedMessage:
        key = f"{endpoint.key.flow:x}.{endpoint.key.number:x}"
        envelope = SessionEnvelope(endpoint.key, not endpoint.is_initiator, batch)
        message = OutgoingMessage(
            queue=QUEUE,
            body=encode_session_envelope(envelope),
            to=endpoint.peer,
            key=key,
            headers=headers,
        )
        return self._encoder.encode(message)

    def _dispatcher_of(self, entry: QueuedMessage) -> QueueDispatcher:
        return self.dispatchers[entry.message.queue]

    def fail(self, ack_token: object, error: Exception) -> None:
        """Nack an inbox message that cannot be consumed now; retried within limits."""
        if isinstance(ack_token, QueuedMessage):
            self._dispatcher_of(ack_token).nack(ack_token, error)

    def requeue(self, ack_token: object, error: Exception) -> None:
        """Requeue an inbox message that is not consumed after all.

        Not for ever after a fault, or if the flow cannot take it now.
        """
        if isinstance(error, UsageError) or not isinstance(error, PostroadError):
            self.fail(ack_token, error)
        elif isinstance(ack_token, QueuedMessage):
            self._dispatcher_of(ack_token).requeue(ack_token)

    def discard(self, ack_token: object) -> None:
        """Acknowledge an inbox message that no flow needs."""
        if isinstance(ack_token, QueuedMessage):
            self._dispatcher_of(ack_token).ack(ack_token)


def _size_of(message: SessionMessage) -> int:
    """Return the bytes of a message in an envelope, besides names."""
    if isinstance(message, SessionError):
        return len(f"{message.kind}{message.text}".encode()) + _MESSAGE_BYTES
    if isinstance(message, SessionReject):
        return len(message.text.encode()) + _MESSAGE_BYTES
    return len(getattr(message, "payload", None) or b"") + _MESSAGE_BYTES


def _shorten(message: SessionError | SessionReject, size: int) -> SessionError | SessionReject:
    """Return the error with as much of its text as fits into an envelope."""
    text = message.text or ""
    while (excess := _size_of(message) - size) > 0 and text:
        text = text.encode()[:-excess].decode(errors="ignore")
        message = msgspec.structs.replace(message, text=text)
    return message
