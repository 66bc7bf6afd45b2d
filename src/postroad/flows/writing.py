"""Turns a transition into a unit of the store: with its letters, and the inbox rows it consumes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from postroad.core.errors import ConfigError, PostroadError
from postroad.core.tracing import SpanKind, SpanLike
from postroad.durable import DurableQueues, Transaction
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.consumers.prefetch import QueuedMessage
from postroad.durable.producer import EncodedMessage, OutgoingMessage

from .commit import FlowMutation
from .events import FlowTransition
from .machine import FlowStateMachine
from .messages import (
    QUEUE,
    SessionEnvelope,
    SessionError,
    SessionMessage,
    SessionReject,
    encode_session_envelope,
)
from .resident import LoadedFlow
from .session import SessionEndpoint
from .traces import start_child_span, trace_headers

# Room for what a letter has besides what is sent: names of flows and applications, mostly.
_ENVELOPE_BYTES = 2_048
_MESSAGE_BYTES = 64
_ENVELOPE_BYTES_MIN = 1_024

OnFlowCommitted = Callable[[FlowMutation, Exception | None], None]


class FlowMutationBuilder:
    """Makes units of what machines say.

    Attributes:
        consumption: what the inbox rows are from.
        payload_max: size of the largest thing a flow may send.
    """

    def __init__(self, mail: DurableQueues) -> None:
        self._clerk = mail.encoder
        self._next_buffer_id = itertools.count(1).__next__
        self.consumption: QueueDispatcher | None = None
        size = mail.config.message_bytes_max
        if size < _ENVELOPE_BYTES_MIN:
            raise ConfigError(
                f"message_bytes_max={size} of the mail is too little for flows: they need "
                f"{_ENVELOPE_BYTES_MIN}"
            )
        self.payload_max = size - min(_ENVELOPE_BYTES, size // 2)

    def set_next_id(self, first: int) -> None:
        """Number what is kept from here on."""
        self._next_buffer_id = itertools.count(first).__next__

    def build(
        self,
        loaded: LoadedFlow,
        machine: FlowStateMachine,
        transition: FlowTransition,
        tx: Transaction | None,
        on_committed: OnFlowCommitted,
    ) -> FlowMutation:
        """The unit of a transition, and of what a step did in its transaction."""
        for _, buffered in transition.buffered:
            buffered.id = self._next_buffer_id()
        for signal in transition.signals:
            signal.id = self._next_buffer_id()
        posts = [] if tx is None else list(tx.sends)
        spans: list[SpanLike] = []
        for number, messages in transition.outgoing.items():
            endpoint = machine.sessions.by_number[number]
            name = f"say {machine.state.name}"
            span = start_child_span(
                self._clerk.node, machine.state, name, SpanKind.PRODUCER, peer=endpoint.peer
            )
            spans.append(span)
            posts += self._envelopes(endpoint, messages, trace_headers(span))
        handlings: Sequence[DispositionMutation] = ()
        if transition.ack_tokens:
            handlings = self._finish(transition)
            if len(handlings) < len(transition.ack_tokens):
                # What was consumed comes again: this must not be committed.
                loaded.sequence.is_broken = True
        return FlowMutation(
            machine.state,
            transition,
            loaded.sequence,
            has_stored_buffer=machine.sessions.has_stored_buffer,
            posts=posts,
            handlings=handlings,
            on_committed=on_committed,
            node=self._clerk.node,
            spans=spans,
        )

    def _finish(self, transition: FlowTransition) -> list[DispositionMutation]:
        """The inbox rows that are consumed, without those that come again all the same."""
        handlings: list[DispositionMutation] = []
        for ack_token in transition.ack_tokens:
            assert self.consumption is not None and isinstance(ack_token, QueuedMessage)
            handling = self.consumption.prepare_ack(ack_token)
            if handling is not None:
                self.consumption.track(handling)
                handlings.append(handling)
        return handlings

    def _envelopes(
        self,
        endpoint: SessionEndpoint,
        messages: list[SessionMessage],
        headers: Mapping[str, str] | None,
    ) -> list[EncodedMessage]:
        """What is said in one session, in as few letters as it fits into."""
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
        return self._clerk.encode(message)

    def fail(self, ack_token: object, error: Exception) -> None:
        """An inbox row cannot be consumed now; it comes again, and not for ever."""
        if isinstance(ack_token, QueuedMessage):
            assert self.consumption is not None
            self.consumption.nack(ack_token, error)

    def requeue(self, ack_token: object, error: Exception) -> None:
        """An inbox row is not consumed after all; it comes again, after a fault not for ever."""
        if not isinstance(error, PostroadError):
            self.fail(ack_token, error)
        elif isinstance(ack_token, QueuedMessage):
            assert self.consumption is not None
            self.consumption.requeue(ack_token)

    def discard(self, ack_token: object) -> None:
        """An inbox row is for nobody any more."""
        if isinstance(ack_token, QueuedMessage):
            assert self.consumption is not None
            self.consumption.ack(ack_token)


def _size_of(message: SessionMessage) -> int:
    """As many bytes as a message takes in a letter, besides names."""
    if isinstance(message, SessionError):
        return len(f"{message.kind}{message.text}".encode()) + _MESSAGE_BYTES
    if isinstance(message, SessionReject):
        return len(message.text.encode()) + _MESSAGE_BYTES
    return len(getattr(message, "payload", None) or b"") + _MESSAGE_BYTES


def _shorten(message: SessionError | SessionReject, size: int) -> SessionError | SessionReject:
    """The same with as much of its text as fits into a letter."""
    text = message.text or ""
    while (excess := _size_of(message) - size) > 0 and text:
        text = text.encode()[:-excess].decode(errors="ignore")
        message = msgspec.structs.replace(message, text=text)
    return message
