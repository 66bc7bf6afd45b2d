"""How a request ended, as its waiting caller gets it, and the error that makes of it.

Futures of requests never carry exceptions: they end with a reply or with one of these, and the
caller builds the error, which alone knows subject and times. Nothing is left unretrieved.
"""

from __future__ import annotations

import copy
from typing import TypeAlias

import msgspec

from postroad.core.errors import (
    MessagingError,
    NoHandlerError,
    NotRunningError,
    Outcome,
    RemoteDecodeError,
    RemoteHandlerError,
    ReplyTimeoutError,
)
from postroad.wire import ReplyFrame, ReplyStatus


class ConnectionDown(msgspec.Struct, frozen=True):
    """The connection ended before the reply."""

    error: MessagingError
    status: int = -1


class RequestExpired(msgspec.Struct, frozen=True, gc=False):
    """The request's time is over."""

    status: int = -2


RequestResult: TypeAlias = ReplyFrame | ConnectionDown | RequestExpired

EXPIRED = RequestExpired()


def error_from_result(result: RequestResult, subject: str) -> MessagingError:
    """The error a failed request raises, still without peer and times."""
    if isinstance(result, ConnectionDown):
        # Many share the result; raised, one error would hold the frames of them all.
        return copy.copy(result.error)
    if isinstance(result, RequestExpired):
        return ReplyTimeoutError("no reply in time")
    text = result.payload.decode("utf-8", "replace")
    if result.status == ReplyStatus.NO_HANDLER:
        # Older peers send just the subject, if anything, and that is always worth another try.
        is_transient = result.retryable or text in (subject, "")
        return NoHandlerError(_no_handler_text(text, subject), retryable=is_transient)
    if result.status == ReplyStatus.STOPPING:
        return NoHandlerError(text or "the peer is stopping")
    if result.status == ReplyStatus.PROTOCOL_FAILED:
        return RemoteDecodeError(text or "the peer could not parse the message")
    failure = RemoteHandlerError(text, retryable=result.retryable)
    failure.remote_code = result.code
    return failure


def stopped_while_in_flight() -> ConnectionDown:
    """What requests get when their own service stops."""
    return ConnectionDown(
        NotRunningError(
            "the service stopped while the request was in flight", outcome=Outcome.UNKNOWN
        )
    )


def _no_handler_text(text: str, subject: str) -> str:
    """Peers of older versions send just the subject; newer ones may send a sentence."""
    if text and text != subject:
        return text
    return f"the peer has no handler for {subject!r}"
