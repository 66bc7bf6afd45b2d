"""Handlers by subject, their spans, and how their results become replies, remote and local."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import TypeAlias

import msgspec

from postroad.core import Address, tracing
from postroad.core.errors import ConfigError, PostroadError, ProtocolError
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.core.tracing import SpanContext, SpanKind, SpanLike
from postroad.wire import ReplyStatus


class RawMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a handler receives it."""

    payload: bytes
    subject: str
    sender: Address
    """The address that the sender advertises: a claim, which does not prove the sender."""
    peer: str | None = None
    """The name of the sender: with TLS one of its certificate, else its claim; None if unknown."""
    deadline: float | None = None
    """When the caller stops waiting, by the clock of the event loop; None if it did not say."""
    source: Address | None = None
    """Of a datagram: the address of the socket that sent it."""


HandlerReturn: TypeAlias = bytes | bytearray | memoryview | None
MessageHandler: TypeAlias = Callable[[RawMessage], HandlerReturn | Awaitable[HandlerReturn]]


class Subscription(msgspec.Struct, frozen=True):
    """A handler of a subject."""

    subject: str
    handler: MessageHandler
    one_way: bool
    """Whether it handles one-way messages and never replies."""


logger = logging.getLogger("postroad.net")

# Longer texts of exceptions are cut off: each travels with its reply.
_TEXT_CHARS_MAX = 4_096


class HandlerReply(msgspec.Struct, gc=False):
    """Status, payload and error code of a reply."""

    status: int
    payload: bytes
    code: int = 0
    retryable: bool = False


HandlerResult: TypeAlias = bytes | HandlerReply | Awaitable[HandlerReturn]


class SubscriptionTable:
    """Handlers by subject."""

    def __init__(self) -> None:
        # Public, because server connections read it for every request.
        self.by_subject: dict[str, Subscription] = {}

    def add(self, subject: str, handler: MessageHandler, *, one_way: bool) -> None:
        """Register the handler of a subject, which has none yet."""
        if subject in self.by_subject:
            raise ConfigError(f"subject {subject!r} has a handler; unsubscribe() it first")
        if not callable(handler):
            raise ConfigError(f"the handler of {subject!r} must be callable, not {handler!r}")
        try:
            size = len(subject.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"subject {subject!r} cannot be encoded as UTF-8") from None
        if size > SUBJECT_BYTES_MAX:
            raise ConfigError(f"subject of {size} bytes is longer than {SUBJECT_BYTES_MAX}")
        self.by_subject[subject] = Subscription(subject, handler, one_way)

    def remove(self, subject: str) -> bool:
        """Remove the handler of a subject; its running calls continue."""
        return self.by_subject.pop(subject, None) is not None


def call_handler(subscription: Subscription, message: RawMessage) -> HandlerResult:
    """Call the handler; return its reply, its failure, or an awaitable of either."""
    try:
        result = subscription.handler(message)
    except (Exception, asyncio.CancelledError) as error:
        return error_reply(error, subscription)
    return to_handler_result(result, subscription)


def to_handler_result(
    result: HandlerReturn | Awaitable[HandlerReturn], subscription: Subscription
) -> HandlerResult:
    """Return the value that a handler returned as reply, failure or awaitable."""
    return result if isinstance(result, Awaitable) else to_payload(result, subscription)


def reply_from_task(
    task: asyncio.Future[HandlerReturn], subscription: Subscription
) -> bytes | HandlerReply:
    """Return the reply of a finished asynchronous handler.

    The handler was not cancelled: a CancelledError is one that it raised itself, and a failure.
    """
    try:
        return to_payload(task.result(), subscription)
    except (Exception, asyncio.CancelledError) as error:
        return error_reply(error, subscription)


def to_payload(result: HandlerReturn, subscription: Subscription) -> bytes | HandlerReply:
    """Return the value that a handler returned as bytes, or as failure."""
    if type(result) is bytes:
        return result
    if result is None:
        return b""
    if isinstance(result, bytes | bytearray | memoryview):
        return bytes(result)
    error = TypeError(f"handler returned {type(result).__name__}; bytes or None are allowed")
    return error_reply(error, subscription)


def error_reply(error: BaseException, subscription: Subscription) -> HandlerReply:
    logger.debug("handler of %r failed", subscription.subject, exc_info=error)
    text = _text_of(error)[:_TEXT_CHARS_MAX].encode("utf-8", "replace")
    if isinstance(error, ProtocolError):
        return HandlerReply(ReplyStatus.PROTOCOL_FAILED, text, error.code)
    if isinstance(error, PostroadError):
        return HandlerReply(ReplyStatus.HANDLER_FAILED, text, error.code, error.retryable)
    return HandlerReply(ReplyStatus.HANDLER_FAILED, text)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except (Exception, asyncio.CancelledError):
        return f"{type(error).__name__}, whose text cannot be read"


def no_handler_reply(subject: str) -> HandlerReply:
    return HandlerReply(ReplyStatus.NO_HANDLER, subject.encode(), retryable=True)


def one_way_handler_reply(subject: str) -> HandlerReply:
    """Return the reply for a request to a handler of one-way messages."""
    text = f"the handler of {subject!r} takes one-way messages only; use send"
    return HandlerReply(ReplyStatus.NO_HANDLER, text.encode())


def oversized_reply(size: int, maximum: int) -> HandlerReply:
    """Return the reply for a result that exceeds the limit of the connection."""
    text = f"the reply of {size} bytes exceeds the {maximum} this connection carries"
    return HandlerReply(ReplyStatus.HANDLER_FAILED, text.encode())


STOPPING_REPLY = HandlerReply(ReplyStatus.STOPPING, b"the peer is stopping", retryable=True)
HANDLER_TIMEOUT_REPLY = HandlerReply(
    ReplyStatus.HANDLER_FAILED, b"the handler took too long and was cancelled"
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
