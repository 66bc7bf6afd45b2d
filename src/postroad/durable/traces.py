"""Spans of mail: a letter tells in its headers which one it belongs to, for as long as it waits."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.core import tracing
from postroad.core.tracing import AnySpan, Kind

from .shelf import Entry


def posting(node: str, peer: str, queue: str, headers: Mapping[str, str] | None = None) -> AnySpan:
    """The span of a message that is posted."""
    return tracing.outgoing(
        "durable", f"post {queue}", Kind.PRODUCER, node=node, peer=peer, headers=headers
    )


def handling(node: str, entry: Entry) -> AnySpan:
    """The span of the handling of a message: a child of its posting, whenever that was."""
    letter = entry.letter
    span = tracing.incoming(
        "durable",
        f"handle {letter.queue}",
        tracing.extract(letter.headers),
        Kind.CONSUMER,
        node=node,
        peer=entry.home.sender,
    )
    span.set("attempt", entry.failures + 1)
    return span
