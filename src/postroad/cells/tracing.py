"""Spans of messages to cells: one where it is sent, one at each domain that sends it on, and one
where it is handled. A message tells in its headers which one it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.cells.addresses import copy_with
from postroad.cells.delivery.envelope import HEADERS_BYTES_MAX, HEADERS_MAX, Envelope, MessageKind
from postroad.cells.messages import COMMAND, PING
from postroad.core import tracing
from postroad.core.limits import KIB
from postroad.core.tracing import NOOP_SPAN, SpanContext, SpanKind, SpanLike

# What a context takes of the room for headers.
_CONTEXT_HEADERS = 2
_CONTEXT_BYTES = 1 * KIB
_MARK = tracing.TRACEPARENT.encode()


def start_send_span(
    node: str, verb: str, destination: object, headers: Mapping[str, str] | None, kind: SpanKind
) -> SpanLike:
    """The span of a message that a cell of this domain sends."""
    name = f"{verb} {destination}"
    return tracing.start_outgoing_span(
        "cells", name, kind, node=node, peer=str(destination), headers=headers
    )


def inject_trace_headers(
    headers: Mapping[str, str] | None, context: SpanContext | None
) -> dict[str, str] | None:
    """Headers with a context, if there is room for it: nothing fails because it is traced."""
    if headers:
        # Whatever is wrong with them is said later.
        size = sum(4 * len(f"{name}{value}") for name, value in headers.items())
        is_full = len(headers) + _CONTEXT_HEADERS > HEADERS_MAX
        if is_full or size + _CONTEXT_BYTES > HEADERS_BYTES_MAX:
            context = None
    return tracing.inject_context(headers, context)


def may_carry_trace(data: bytes) -> bool:
    """Whether an envelope in bytes may say which span it belongs to."""
    return _MARK in data


def record_forward_span(node: str, envelope: Envelope, onward: str) -> Envelope:
    """Note that a message is sent on; its next hop is a part of this one."""
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
    """The span of the handling of a message; none unless whoever sent it is traced."""
    context = tracing.extract_context(envelope.headers)
    if context is None or envelope.content_type in (PING, COMMAND):
        return NOOP_SPAN
    kind = SpanKind.SERVER if envelope.wants_reply else SpanKind.CONSUMER
    peer = str(envelope.source.first or "")
    return tracing.start_incoming_span(
        "cells", f"handle {cell}", context, kind, node=node, peer=peer
    )
