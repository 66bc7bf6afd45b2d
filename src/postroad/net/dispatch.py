"""From a message to its handler's answer, the same for messages from sockets and from this node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from postroad.core import Address
from postroad.core.errors import ConfigError, PostroadError, ProtocolError
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.wire import ReplyStatus


class RawMessage(msgspec.Struct, frozen=True, gc=False):
    """One message as a handler sees it."""

    payload: bytes
    subject: str
    sender: Address
    """The address its sender advertises: a claim, which does not say who the sender is."""
    peer: str | None = None
    """The sender's name if known: over TLS one in its certificate, else what it claims."""
    deadline: float | None = None
    """Time of the event loop's clock after which nobody waits for the reply, where told."""
    source: Address | None = None
    """Of a datagram: where it really came from, whatever its sender says."""


HandlerReturn: TypeAlias = bytes | bytearray | memoryview | None
MessageHandler: TypeAlias = Callable[[RawMessage], HandlerReturn | Awaitable[HandlerReturn]]


class Subscription(msgspec.Struct, frozen=True):
    """A handler and how it wants to be called."""

    subject: str
    handler: MessageHandler
    one_way: bool
    """Whether it consumes messages without ever replying."""


logger = logging.getLogger("postroad.net")

# An exception's text beyond this helps nobody and would travel with every failure.
_TEXT_CHARS_MAX = 4_096


class HandlerReply(msgspec.Struct, gc=False):
    """How a message was handled, as it travels in a reply."""

    status: int
    payload: bytes
    code: int = 0
    retryable: bool = False


HandlerResult: TypeAlias = bytes | HandlerReply | Awaitable[HandlerReturn]


class SubscriptionTable:
    """Handlers by subject."""

    def __init__(self) -> None:
        # Public to the loop that serves requests.
        self.by_subject: dict[str, Subscription] = {}

    def add(self, subject: str, handler: MessageHandler, *, one_way: bool) -> None:
        """Register the handler of a subject; a subject has one."""
        if subject in self.by_subject:
            raise ConfigError(f"subject {subject!r} has a handler; unsubscribe it first")
        if not callable(handler):
            raise ConfigError(f"the handler of {subject!r} must be callable, not {handler!r}")
        try:
            size = len(subject.encode())
        except UnicodeEncodeError:
            raise ConfigError(f"subject {subject!r} cannot be encoded as UTF-8") from None
        if size > SUBJECT_BYTES_MAX:
            raise ConfigError(f"a subject cannot be longer than {SUBJECT_BYTES_MAX} bytes")
        self.by_subject[subject] = Subscription(subject, handler, one_way)

    def remove(self, subject: str) -> bool:
        """Forget the handler of a subject; what it is working on goes on."""
        return self.by_subject.pop(subject, None) is not None


def call_handler(subscription: Subscription, message: RawMessage) -> HandlerResult:
    """Call the handler: its reply, its failure, or what must be awaited for either."""
    try:
        result = subscription.handler(message)
    except (Exception, asyncio.CancelledError) as error:
        return error_reply(error, subscription)
    return to_handler_result(result, subscription)


def to_handler_result(
    result: HandlerReturn | Awaitable[HandlerReturn], subscription: Subscription
) -> HandlerResult:
    """What a handler returned, sorted."""
    return result if isinstance(result, Awaitable) else to_payload(result, subscription)


def reply_from_task(
    run: asyncio.Future[HandlerReturn], subscription: Subscription
) -> bytes | HandlerReply:
    """What came of an asynchronous handler that is over.

    Nobody cancelled it: a CancelledError is one it raised itself, a failure like any other.
    """
    try:
        return to_payload(run.result(), subscription)
    except (Exception, asyncio.CancelledError) as error:
        return error_reply(error, subscription)


def to_payload(result: HandlerReturn, subscription: Subscription) -> bytes | HandlerReply:
    """What a handler returned, as bytes."""
    if type(result) is bytes:
        return result
    if result is None:
        return b""
    if isinstance(result, bytes | bytearray | memoryview):
        return bytes(result)
    error = TypeError(f"handler returned {type(result).__name__}; bytes or None are allowed")
    return error_reply(error, subscription)


def error_reply(error: BaseException, subscription: Subscription) -> HandlerReply:
    """What the caller is told of an exception in a handler."""
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
        return f"{type(error).__name__}, whose text cannot be told"


def no_handler_reply(subject: str) -> HandlerReply:
    """What the caller is told when nobody is subscribed."""
    return HandlerReply(ReplyStatus.NO_HANDLER, subject.encode(), retryable=True)


def one_way_handler_reply(subject: str) -> HandlerReply:
    """What a caller is told that waits for a reply of a consumer, where it can be told."""
    text = f"the handler of {subject!r} takes one-way messages only; use send"
    return HandlerReply(ReplyStatus.NO_HANDLER, text.encode())


def oversized_reply(size: int, maximum: int) -> HandlerReply:
    """What the caller is told when the reply does not fit the connection."""
    text = f"the reply of {size} bytes exceeds the {maximum} this connection carries"
    return HandlerReply(ReplyStatus.HANDLER_FAILED, text.encode())


STOPPING_REPLY = HandlerReply(ReplyStatus.STOPPING, b"the peer is stopping", retryable=True)
HANDLER_TIMEOUT_REPLY = HandlerReply(
    ReplyStatus.HANDLER_FAILED, b"the handler took too long and was cancelled"
)
