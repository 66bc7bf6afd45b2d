"""Spans of messages to cells: one where it is sent, one at each domain that sends it on, and one
where it is handled. A message tells in its headers which one it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.core import tracing
from postroad.core.limits import KIB
from postroad.core.tracing import NO_SPAN, AnySpan, Kind, SpanContext

from .altering import altered
from .content import COMMAND, PING
from .envelope import HEADERS_BYTES_MAX, HEADERS_MAX, Envelope
from .envelope import Kind as EnvelopeKind

# What a context takes of the room for headers.
_CONTEXT_HEADERS = 2
_CONTEXT_BYTES = 1 * KIB
_MARK = tracing.TRACEPARENT.encode()


def sending(
    node: str, verb: str, destination: object, headers: Mapping[str, str] | None, kind: Kind
) -> AnySpan:
    """The span of a message that a cell of this domain sends."""
    name = f"{verb} {destination}"
    return tracing.outgoing("cells", name, kind, node=node, peer=str(destination), headers=headers)


def tell(headers: Mapping[str, str] | None, context: SpanContext | None) -> dict[str, str] | None:
    """Headers with a context, if there is room for it: nothing fails because it is traced."""
    if headers:
        # Whatever is wrong with them is said later.
        size = sum(4 * len(f"{name}{value}") for name, value in headers.items())
        is_full = len(headers) + _CONTEXT_HEADERS > HEADERS_MAX
        if is_full or size + _CONTEXT_BYTES > HEADERS_BYTES_MAX:
            context = None
    return tracing.inject(headers, context)


def is_told(data: bytes) -> bool:
    """Whether an envelope in bytes may say which span it belongs to."""
    return _MARK in data


def passing(node: str, envelope: Envelope, onward: str) -> Envelope:
    """Note that a message is sent on; its next hop is a part of this one."""
    context = tracing.extract(envelope.headers)
    if context is None or envelope.kind is not EnvelopeKind.MESSAGE:
        return envelope
    name = f"forward {envelope.destination.last}"
    span = tracing.incoming("cells", name, context, Kind.INTERNAL, node=node, peer=onward)
    span.end()
    if span.context is None:
        return envelope
    return altered(envelope, "headers", tracing.inject(envelope.headers, span.context))


def delivering(node: str, cell: str, envelope: Envelope) -> AnySpan:
    """The span of the handling of a message; none unless whoever sent it is traced."""
    context = tracing.extract(envelope.headers)
    if context is None or envelope.content in (PING, COMMAND):
        return NO_SPAN
    kind = Kind.SERVER if envelope.wants_reply else Kind.CONSUMER
    peer = str(envelope.source.first or "")
    return tracing.incoming("cells", f"handle {cell}", context, kind, node=node, peer=peer)
