"""Spans of messages: one at the sender, one at each domain that forwards, one at the handler.

The headers of a message carry the context of the span that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.cells.addresses import copy_with
from postroad.cells.delivery.envelope import HEADERS_BYTES_MAX, HEADERS_MAX, Envelope, MessageKind
from postroad.cells.messages import COMMAND, PING
from postroad.core import tracing
from postroad.core.limits import KIB
from postroad.core.tracing import NOOP_SPAN, SpanContext, SpanKind, SpanLike

# Headers and bytes that a trace context takes at most.
_CONTEXT_HEADERS = 2
_CONTEXT_BYTES = 1 * KIB
TRACE_MARK = tracing.TRACEPARENT.encode()
"""Contained in encoded envelopes that carry a trace context."""


def start_send_span(
    node: str, verb: str, destination: object, headers: Mapping[str, str] | None, kind: SpanKind
) -> SpanLike:
    """Start the span of a message sent by a cell of this domain."""
    name = f"{verb} {destination}"
    return tracing.start_outgoing_span(
        "cells", name, kind, node=node, peer=str(destination), headers=headers
    )


def inject_trace_headers(
    headers: Mapping[str, str] | None, context: SpanContext | None
) -> dict[str, str] | None:
    """Return headers with the trace context, or without it if they would exceed their limits."""
    if headers:
        # An upper bound; invalid headers are rejected when the envelope is built.
        size = sum(4 * len(f"{name}{value}") for name, value in headers.items())
        is_full = len(headers) + _CONTEXT_HEADERS > HEADERS_MAX
        if is_full or size + _CONTEXT_BYTES > HEADERS_BYTES_MAX:
            context = None
    return tracing.inject_context(headers, context)


def record_forward_span(node: str, envelope: Envelope, onward: str) -> Envelope:
    context = tracing.extract_context(envelope.headers)
    if context is None or envelope.kind is not MessageKind.MESSAGE:
        return envelope
    name = f"forward {envelope.destination.last}"
    span = tracing.start_incoming_span(
        "cells", name, context, SpanKind.INTERNAL, node=node, peer=onward
    )
    span.end()
    if span.context is None:
        return envelope
    return copy_with(envelope, "headers", tracing.inject_context(envelope.headers, span.context))


def start_handle_span(node: str, cell: str, envelope: Envelope) -> SpanLike:
    """Start the span of handling a message; a no-op unless its headers carry a trace context."""
    context = tracing.extract_context(envelope.headers)
    if context is None or envelope.content_type in (PING, COMMAND):
        return NOOP_SPAN
    kind = SpanKind.SERVER if envelope.wants_reply else SpanKind.CONSUMER
    peer = str(envelope.source.first or "")
    return tracing.start_incoming_span(
        "cells", f"handle {cell}", context, kind, node=node, peer=peer
    )
