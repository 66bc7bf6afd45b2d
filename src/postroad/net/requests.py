"""One message on its way: what it may be, and what an error about it must tell."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from postroad.core import Address
from postroad.core.errors import (
    ConfigError,
    MessageTooLargeError,
    MessagingError,
    NoHandlerError,
    NotRunningError,
    Outcome,
    RemoteDecodeError,
    RemoteHandlerError,
    ReplyTimeoutError,
    UsageError,
)
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.core.tracing import SpanContext
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


Payload: TypeAlias = bytes | bytearray | memoryview

# Longer than anybody waits, and short enough to be told to a peer in milliseconds.
_TIMEOUT_S_MAX = 1e6


class RequestAttempt:
    """Whom a message is for, when it began and how long it may take."""

    __slots__ = ("_now", "_started", "peer", "subject", "target", "timeout", "trace")

    def __init__(
        self, target: Address, subject: str, timeout: float, now: Callable[[], float]
    ) -> None:
        self.target = target
        self.subject = subject
        self.timeout = timeout
        # The peer for texts; its name is added once it is known.
        self.peer = str(target)
        # The span it is told to belong to, if any.
        self.trace: SpanContext | None = None
        self._now = now
        self._started = now()

    @property
    def deadline(self) -> float:
        """When the time is over."""
        return self._started + self.timeout

    @contextmanager
    def annotating_errors(self, last_failure: Callable[[Address], str | None]) -> Iterator[None]:
        """Have every failure inside tell peer, subject and times.

        Running out of time in here means that the message was not written yet: once it is, its
        reply's own deadline holds.
        """
        try:
            yield
        except MessagingError as error:
            raise self._annotate(error) from error.__cause__
        except TimeoutError:
            raise self._annotate(self._connect_timeout_error(last_failure(self.target))) from None

    def _connect_timeout_error(self, reason: str | None) -> MessagingError:
        detail = f"; the last attempt: {reason}" if reason else ", or the peer reads too slowly"
        return ReplyTimeoutError(
            f"no connection in time{detail}", outcome=Outcome.NOT_SENT, retryable=True
        )

    def _annotate(self, error: MessagingError) -> MessagingError:
        return error.with_context(
            peer=self.peer,
            subject=self.subject,
            elapsed_s=self._now() - self._started,
            timeout_s=self.timeout,
        )


def validate_message(subject: str, payload: Payload) -> bytes:
    """The payload as bytes that nobody can change any more."""
    try:
        size = len(subject.encode())
    except UnicodeEncodeError:
        raise UsageError(f"subject {subject!r} cannot be encoded as UTF-8") from None
    if size > SUBJECT_BYTES_MAX:
        raise MessageTooLargeError(f"a subject cannot be longer than {SUBJECT_BYTES_MAX} bytes")
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"a payload must be bytes, not {type(payload).__name__}")


def validate_timeout(timeout: float) -> float:
    """A time that can be waited for and told to a peer."""
    if not timeout > 0:
        raise ConfigError(f"timeout={timeout!r} must be more than 0 seconds")
    return min(float(timeout), _TIMEOUT_S_MAX)


def check_size(subject: str, data: bytes, maximum: int) -> None:
    """Refuse a message that the connection does not carry."""
    size = len(data) + len(subject.encode())
    if size > maximum:
        raise MessageTooLargeError(
            f"a message of {size} bytes exceeds the {maximum} this connection carries"
        )
