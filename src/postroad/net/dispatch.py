"""From a message to its handler's answer, the same for messages from sockets and from this node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeAlias

import msgspec

from postroad.core.errors import ConfigError, PostroadError, ProtocolError
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.wire import Status

from .message import Handler, Message, Result, Subscription

logger = logging.getLogger("postroad.net")

# An exception's text beyond this helps nobody and would travel with every failure.
_TEXT_CHARS_MAX = 4_096


class Answer(msgspec.Struct, gc=False):
    """How a message was handled, as it travels in a reply."""

    status: int
    payload: bytes
    code: int = 0
    retryable: bool = False


Reaction: TypeAlias = bytes | Answer | Awaitable[Result]


class Subscriptions:
    """Handlers by subject."""

    def __init__(self) -> None:
        # Public to the loop that serves requests.
        self.by_subject: dict[str, Subscription] = {}

    def add(self, subject: str, handler: Handler, *, one_way: bool) -> None:
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


def react(subscription: Subscription, message: Message) -> Reaction:
    """Call the handler: its reply, its failure, or what must be awaited for either."""
    try:
        result = subscription.handler(message)
    except (Exception, asyncio.CancelledError) as error:
        return failure_answer(error, subscription)
    return to_reaction(result, subscription)


def to_reaction(result: Result | Awaitable[Result], subscription: Subscription) -> Reaction:
    """What a handler returned, sorted."""
    return result if isinstance(result, Awaitable) else to_payload(result, subscription)


def answer_of(run: asyncio.Future[Result], subscription: Subscription) -> bytes | Answer:
    """What came of an asynchronous handler that is over.

    Nobody cancelled it: a CancelledError is one it raised itself, a failure like any other.
    """
    try:
        return to_payload(run.result(), subscription)
    except (Exception, asyncio.CancelledError) as error:
        return failure_answer(error, subscription)


def to_payload(result: Result, subscription: Subscription) -> bytes | Answer:
    """What a handler returned, as bytes."""
    if type(result) is bytes:
        return result
    if result is None:
        return b""
    if isinstance(result, bytes | bytearray | memoryview):
        return bytes(result)
    error = TypeError(f"handler returned {type(result).__name__}; bytes or None are allowed")
    return failure_answer(error, subscription)


def failure_answer(error: BaseException, subscription: Subscription) -> Answer:
    """What the caller is told of an exception in a handler."""
    logger.debug("handler of %r failed", subscription.subject, exc_info=error)
    text = _text_of(error)[:_TEXT_CHARS_MAX].encode("utf-8", "replace")
    if isinstance(error, ProtocolError):
        return Answer(Status.PROTOCOL_FAILED, text, error.code)
    if isinstance(error, PostroadError):
        return Answer(Status.HANDLER_FAILED, text, error.code, error.retryable)
    return Answer(Status.HANDLER_FAILED, text)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except (Exception, asyncio.CancelledError):
        return f"{type(error).__name__}, whose text cannot be told"


def no_handler_answer(subject: str) -> Answer:
    """What the caller is told when nobody is subscribed."""
    return Answer(Status.NO_HANDLER, subject.encode(), retryable=True)


def consumer_answer(subject: str) -> Answer:
    """What a caller is told that waits for a reply of a consumer, where it can be told."""
    text = f"the handler of {subject!r} takes one-way messages only; use send"
    return Answer(Status.NO_HANDLER, text.encode())


def reply_too_large_answer(size: int, maximum: int) -> Answer:
    """What the caller is told when the reply does not fit the connection."""
    text = f"the reply of {size} bytes exceeds the {maximum} this connection carries"
    return Answer(Status.HANDLER_FAILED, text.encode())


STOPPING_ANSWER = Answer(Status.STOPPING, b"the peer is stopping", retryable=True)
EXPIRED_ANSWER = Answer(Status.HANDLER_FAILED, b"the handler took too long and was cancelled")
