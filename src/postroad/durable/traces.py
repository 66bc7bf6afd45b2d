"""Spans of mail: a letter tells in its headers which one it belongs to, for as long as it waits."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.core import tracing
from postroad.core.tracing import SpanKind, SpanLike

from .shelf import Entry


def posting(node: str, peer: str, queue: str, headers: Mapping[str, str] | None = None) -> SpanLike:
    """The span of a message that is posted."""
    return tracing.start_outgoing_span(
        "durable", f"post {queue}", SpanKind.PRODUCER, node=node, peer=peer, headers=headers
    )


def handling(node: str, entry: Entry) -> SpanLike:
    """The span of the handling of a message: a child of its posting, whenever that was."""
    letter = entry.letter
    span = tracing.start_incoming_span(
        "durable",
        f"handle {letter.queue}",
        tracing.extract_context(letter.headers),
        SpanKind.CONSUMER,
        node=node,
        peer=entry.home.sender,
    )
    span.set_attribute("attempt", entry.failures + 1)
    return span
