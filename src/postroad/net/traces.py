"""Spans of messages between nodes."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial

from postroad.core import Address, tracing
from postroad.core.tracing import AnySpan, Kind, SpanContext

from .dispatch import Answer, Reaction, react
from .message import Message, Result, Subscription

# What nodes tell each other all the time by themselves would bury everything else.
_OWN_SUBJECTS = frozenset({"desk"})
_OWN_PREFIXES = ("cluster.", "durable.", "internal.", "postroad.")


def is_own(subject: str) -> bool:
    """Whether messages to a subject are Postroad's own, which nobody traces."""
    return subject in _OWN_SUBJECTS or subject.startswith(_OWN_PREFIXES)


def departing(subject: str, *, node: str, peer: str | Address, one_way: bool = False) -> AnySpan:
    """The span of a message that this node sends."""
    if tracing.tracer is None or is_own(subject):
        return tracing.NO_SPAN
    kind, verb = (Kind.PRODUCER, "send") if one_way else (Kind.CLIENT, "request")
    return tracing.outgoing("net", f"{verb} {subject}", kind, node=node, peer=_shown(peer))


@lru_cache(1024)
def _shown(peer: str | Address) -> str:
    return str(peer)


def react_traced(
    subscription: Subscription, message: Message, parent: SpanContext | None, *, node: str
) -> Reaction:
    """Call the handler inside of a span that ends when the handler has."""
    subject = message.subject
    if is_own(subject):
        return react(subscription, message)
    kind = Kind.CONSUMER if subscription.one_way else Kind.SERVER
    peer = message.peer or str(message.sender)
    span = tracing.incoming("net", f"handle {subject}", parent, kind, node=node, peer=peer)
    with span.inside:
        reaction = react(subscription, message)
        if isinstance(reaction, Answer):
            span.fail(reaction.payload.decode(), reaction.code)
        elif isinstance(reaction, bytes):
            span.end()
        else:
            # A future, since a coroutine around it would lose it if it were cancelled at once.
            reaction = asyncio.ensure_future(reaction)
            reaction.add_done_callback(partial(_end, span))
    return reaction


def _end(span: AnySpan, run: asyncio.Future[Result]) -> None:
    span.end(asyncio.CancelledError("cancelled") if run.cancelled() else run.exception())
