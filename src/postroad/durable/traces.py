"""Spans of durable messages: the headers of a message carry the context of its sender."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.core import tracing
from postroad.core.tracing import SpanKind, SpanLike
from postroad.durable.consumers.prefetch import QueuedMessage


def start_send_span(
    node: str, peer: str, queue: str, headers: Mapping[str, str] | None = None
) -> SpanLike:
    """The span of a message that is posted."""
    return tracing.start_outgoing_span(
        "durable", f"post {queue}", SpanKind.PRODUCER, node=node, peer=peer, headers=headers
    )


def start_handle_span(node: str, entry: QueuedMessage) -> SpanLike:
    """The span of the handling of a message: a child of its posting, whenever that was."""
    message = entry.message
    span = tracing.start_incoming_span(
        "durable",
        f"handle {message.queue}",
        tracing.extract_context(message.headers),
        SpanKind.CONSUMER,
        node=node,
        peer=entry.location.sender,
    )
    span.set_attribute("attempt", entry.failures + 1)
    return span
