"""Spans of flows. A flow keeps the context it was begun with, and what it does is part of that.

A flow that is replayed does nothing again, so there is a span for what was really run or committed,
and none for what is read from the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET

from postroad.core import tracing
from postroad.core.tracing import NOOP_SPAN, SpanContext, SpanKind, SpanLike
from postroad.durable.shelf import Entry

from .events import Transition
from .head import Head, show_id
from .life import Status


def beginning(node: str, name: str) -> SpanLike:
    """The span of the beginning of a flow, which all that it does is a part of."""
    return tracing.start_outgoing_span("flows", f"begin {name}", SpanKind.INTERNAL, node=node)


def scheduled(node: str, name: str) -> SpanLike:
    """The same of a flow that nobody but the clock begins."""
    return tracing.start_incoming_span("flows", f"begin {name}", None, SpanKind.INTERNAL, node=node)


def responding(node: str, name: str, entry: Entry) -> SpanLike:
    """The span of the beginning of a flow that another one has opened a session with."""
    parent = tracing.extract_context(entry.letter.headers)
    peer = entry.home.sender
    return tracing.start_incoming_span(
        "flows", f"respond {name}", parent, SpanKind.CONSUMER, node=node, peer=peer
    )


def keep(head: Head, span: SpanLike) -> None:
    """Have a flow remember the span of its beginning."""
    if (told := tracing.inject_context(None, span.context)) is not None:
        head.trace = told


def is_traced(head: Head | None) -> bool:
    """Whether there are spans of what a flow does."""
    return tracing.tracer is not None and head is not None and head.trace is not UNSET


def part_of(node: str, head: Head | None, name: str, kind: SpanKind, *, peer: str = "") -> SpanLike:
    """The span of something that a flow does; none if nobody traced its beginning."""
    if tracing.tracer is None or head is None or head.trace is UNSET:
        return NOOP_SPAN
    parent = tracing.extract_context(head.trace)
    span = tracing.start_incoming_span("flows", name, parent, kind, node=node, peer=peer)
    span.set_attribute("flow", show_id(head.id))
    return span


def headers_of(span: SpanLike) -> Mapping[str, str] | None:
    """What a letter of a flow says of its span."""
    return tracing.inject_context(None, span.context)


def record_commit(node: str, head: Head, transition: Transition, entries: Iterable[Entry]) -> None:
    """A transition is durable: record what was heard for it, and whether the flow has ended."""
    if not transition.is_new:
        for entry in entries:
            context = tracing.extract_context(entry.letter.headers)
            if context is not None:
                _record_heard(node, head, context, entry.home.sender)
    if transition.is_over:
        span = part_of(node, head, f"end {head.name}", SpanKind.INTERNAL)
        if head.status is Status.DONE or head.trouble is None:
            span.end()
        else:
            failure = head.trouble.failure
            span.end_with_error(f"{failure.kind}: {failure.text}")


def _record_heard(node: str, head: Head, context: SpanContext, peer: str) -> None:
    span = tracing.start_incoming_span(
        "flows", f"hear {head.name}", context, SpanKind.CONSUMER, node=node, peer=peer
    )
    span.set_attribute("flow", show_id(head.id))
    span.end()
