"""Spans of flows. A flow stores the context it was started with, the parent of all its spans.

A flow that is replayed does nothing again, so there is a span for what was really run or committed,
and none for what is read from the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET

from postroad.core import tracing
from postroad.core.tracing import NOOP_SPAN, SpanContext, SpanKind, SpanLike
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.flows.machine.events import FlowTransition
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.status import FlowStatus


def start_flow_span(node: str, name: str) -> SpanLike:
    """Return the span of the start of a flow, the parent of all its spans."""
    return tracing.start_outgoing_span("flows", f"begin {name}", SpanKind.INTERNAL, node=node)


def start_scheduled_flow_span(node: str, name: str) -> SpanLike:
    """Return the span of the start of a scheduled flow."""
    return tracing.start_incoming_span("flows", f"begin {name}", None, SpanKind.INTERNAL, node=node)


def start_responder_span(node: str, name: str, entry: QueuedMessage) -> SpanLike:
    """Return the span of the start of a responder."""
    parent = tracing.extract_context(entry.message.headers)
    peer = entry.location.sender
    return tracing.start_incoming_span(
        "flows", f"respond {name}", parent, SpanKind.CONSUMER, node=node, peer=peer
    )


def store_trace(state: FlowState, span: SpanLike) -> None:
    """Store the context of a span in the state of a flow."""
    if (headers := tracing.inject_context(None, span.context)) is not None:
        state.trace = headers


def is_traced(state: FlowState | None) -> bool:
    """Whether spans of a flow are recorded."""
    return tracing.tracer is not None and state is not None and state.trace is not UNSET


def start_child_span(
    node: str, state: FlowState | None, name: str, kind: SpanKind, *, peer: str = ""
) -> SpanLike:
    """Return a child span of a flow; none if its start was not traced."""
    if tracing.tracer is None or state is None or state.trace is UNSET:
        return NOOP_SPAN
    parent = tracing.extract_context(state.trace)
    span = tracing.start_incoming_span("flows", name, parent, kind, node=node, peer=peer)
    span.set_attribute("flow", format_flow_id(state.id))
    return span


def trace_headers(span: SpanLike) -> Mapping[str, str] | None:
    """Return the trace headers of a session message."""
    return tracing.inject_context(None, span.context)


def record_commit_spans(
    node: str, state: FlowState, transition: FlowTransition, entries: Iterable[QueuedMessage]
) -> None:
    """Record the spans of a durable transition: received messages, and the end of the flow."""
    if not transition.is_new:
        for entry in entries:
            context = tracing.extract_context(entry.message.headers)
            if context is not None:
                _record_received(node, state, context, entry.location.sender)
    if transition.is_ended:
        span = start_child_span(node, state, f"end {state.name}", SpanKind.INTERNAL)
        if state.status is FlowStatus.COMPLETED or state.failure is None:
            span.end()
        else:
            failure = state.failure.error
            span.end_with_error(f"{failure.kind}: {failure.text}")


def _record_received(node: str, state: FlowState, context: SpanContext, peer: str) -> None:
    span = tracing.start_incoming_span(
        "flows", f"hear {state.name}", context, SpanKind.CONSUMER, node=node, peer=peer
    )
    span.set_attribute("flow", format_flow_id(state.id))
    span.end()
