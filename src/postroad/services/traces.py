"""Spans of calls and events. Packets tell theirs in their headers, which handlers find there.

What ids of requests, parents and the like mean stays as it is. A call or event that is said not to
be traced is not, and neither is what nodes do among themselves, whose names begin with `$`.
"""

from __future__ import annotations

from typing import Any

from postroad.core import tracing
from postroad.core.tracing import NOOP_SPAN, Span, SpanKind, SpanLike

from .context import Context
from .packets import Request


def calling(node: str, action: str, options: Any) -> SpanLike:
    """The span of a call that is made here."""
    parent: Context | None = options.get("parent")
    inherited = None if parent is None else parent.tracing
    if action.startswith("$") or options.get("tracing", inherited) is False:
        return NOOP_SPAN
    peer, headers = options.get("node_id") or "", options.get("headers")
    return tracing.start_outgoing_span(
        "services", f"call {action}", node=node, peer=peer, headers=headers
    )


def serving(node: str, request: Request) -> SpanLike:
    """The span of a call that another node makes."""
    action = request.action
    if action.startswith("$") or request.tracing is False:
        return NOOP_SPAN
    parent = tracing.extract_context(request.headers)
    return tracing.start_incoming_span(
        "services", f"run {action}", parent, node=node, peer=request.sender
    )


def emitting(node: str, ctx: Context) -> SpanLike:
    """The span of an event that is emitted here."""
    if tracing.tracer is None or ctx.event.startswith("$") or ctx.tracing is False:
        return NOOP_SPAN
    name = f"{'broadcast' if ctx.is_broadcast else 'emit'} {ctx.event}"
    return tracing.start_outgoing_span(
        "services", name, SpanKind.PRODUCER, node=node, headers=ctx.headers
    )


def handling(node: str, ctx: Context, *, is_mail: bool = False) -> SpanLike:
    """The span of the handling of an event.

    One that was emitted at this node, or came by mail, is handled within the current span.
    """
    if tracing.tracer is None or ctx.event.startswith("$") or ctx.tracing is False:
        return NOOP_SPAN
    is_within = is_mail or ctx.node_id == node
    parent = tracing.current_span_context() if is_within else tracing.extract_context(ctx.headers)
    span = tracing.start_incoming_span(
        "services", f"handle {ctx.event}", parent, SpanKind.CONSUMER, node=node, peer=ctx.node_id
    )
    span.set_attribute("service", ctx.service)
    return span


def told(ctx: Context, node_id: str | None = None) -> dict[str, Any]:
    """The headers of a packet; the node that it goes to is noted in the span of the call."""
    span = None if tracing.tracer is None or ctx.tracing is False else tracing.current_span()
    if span is None:
        return ctx.headers
    if node_id is not None and isinstance(span, Span) and span.layer == "services":
        span.peer = node_id
    return tracing.inject_context(ctx.headers, span.context) or ctx.headers
