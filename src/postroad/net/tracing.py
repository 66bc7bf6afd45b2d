"""Spans of messages between nodes."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial

from postroad.core import Address, tracing
from postroad.core.tracing import SpanContext, SpanKind, SpanLike
from postroad.net.dispatch import (
    HandlerReply,
    HandlerResult,
    HandlerReturn,
    RawMessage,
    Subscription,
    call_handler,
)

# Internal messages are so many that their spans would hide all others.
_OWN_SUBJECTS = frozenset({"desk"})
_OWN_PREFIXES = ("cluster.", "durable.", "internal.", "postroad.")


def is_internal_subject(subject: str) -> bool:
    """Whether a subject is internal to Postroad: its messages are not traced."""
    return subject in _OWN_SUBJECTS or subject.startswith(_OWN_PREFIXES)


def start_send_span(
    subject: str, *, node: str, peer: str | Address, one_way: bool = False
) -> SpanLike:
    """Start the span of a message that this node sends."""
    if tracing.tracer is None or is_internal_subject(subject):
        return tracing.NOOP_SPAN
    kind, verb = (SpanKind.PRODUCER, "send") if one_way else (SpanKind.CLIENT, "request")
    return tracing.start_outgoing_span(
        "net", f"{verb} {subject}", kind, node=node, peer=_shown(peer)
    )


@lru_cache(1024)
def _shown(peer: str | Address) -> str:
    return str(peer)


def call_handler_traced(
    subscription: Subscription, message: RawMessage, parent: SpanContext | None, *, node: str
) -> HandlerResult:
    """Call the handler inside a span that ends when the handler finishes."""
    subject = message.subject
    if is_internal_subject(subject):
        return call_handler(subscription, message)
    kind = SpanKind.CONSUMER if subscription.one_way else SpanKind.SERVER
    peer = message.peer or str(message.sender)
    span = tracing.start_incoming_span(
        "net", f"handle {subject}", parent, kind, node=node, peer=peer
    )
    with span.scope:
        reaction = call_handler(subscription, message)
        if isinstance(reaction, HandlerReply):
            span.end_with_error(reaction.payload.decode(), reaction.code)
        elif isinstance(reaction, bytes):
            span.end()
        else:
            # A future: a wrapping coroutine cancelled before its start would not end the span.
            reaction = asyncio.ensure_future(reaction)
            reaction.add_done_callback(partial(_end, span))
    return reaction


def _end(span: SpanLike, run: asyncio.Future[HandlerReturn]) -> None:
    span.end(asyncio.CancelledError("cancelled") if run.cancelled() else run.exception())
