"""Requests: validation, results, and errors with peer, subject and times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
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
    WrongPeerError,
)
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.core.tracing import SpanContext
from postroad.wire import ReplyFrame, ReplyStatus


class ConnectionDown(msgspec.Struct, frozen=True):
    """The connection ended before the reply arrived."""

    error: MessagingError
    status: int = -1


class RequestExpired(msgspec.Struct, frozen=True, gc=False):
    """The timeout of the request has passed."""

    status: int = -2


RequestResult: TypeAlias = ReplyFrame | ConnectionDown | RequestExpired

EXPIRED = RequestExpired()


def error_from_result(result: RequestResult, subject: str) -> MessagingError:
    """Return the error of a failed request, without peer and times."""
    if isinstance(result, ConnectionDown):
        # Requests share this result; a shared error would hold the frames of all callers.
        return copy.copy(result.error)
    if isinstance(result, RequestExpired):
        return ReplyTimeoutError("no reply in time")
    text = result.payload.decode("utf-8", "replace")
    if result.status == ReplyStatus.NO_HANDLER:
        # Older peers send only the subject, if anything; then a retry may help.
        is_transient = result.retryable or text in (subject, "")
        if text in (subject, ""):
            text = f"the peer has no handler for {subject!r}"
        return NoHandlerError(text, retryable=is_transient)
    if result.status == ReplyStatus.STOPPING:
        return NoHandlerError(text or "the peer is stopping")
    if result.status == ReplyStatus.PROTOCOL_FAILED:
        return RemoteDecodeError(text or "the peer could not parse the message")
    failure = RemoteHandlerError(text, retryable=result.retryable)
    failure.remote_code = result.code
    return failure


def stopped_while_in_flight() -> ConnectionDown:
    """Return the result of requests that are in flight when the service stops."""
    return ConnectionDown(
        NotRunningError(
            "the service stopped while the request was in flight", outcome=Outcome.UNKNOWN
        )
    )


Payload: TypeAlias = bytes | bytearray | memoryview

# Longer than any caller waits, and small enough for the milliseconds of a frame.
_TIMEOUT_S_MAX = 1e6


class RequestAttempt:
    """One message, its target, start and timeout; annotates its errors."""

    def __init__(
        self,
        target: Address,
        subject: str,
        payload: bytes,
        timeout: float,
        expected_peer: str | None,
        now: Callable[[], float],
    ) -> None:
        self.target = target
        self.subject = subject
        self.payload = payload
        self.timeout = timeout
        # The name that the node at the target must have, if any.
        self.expected_peer = expected_peer
        # The peer for texts; its name is added when it is known.
        self.peer = str(target)
        # The span that the message belongs to, if any.
        self.trace: SpanContext | None = None
        self._now = now
        self._started = now()

    @property
    def deadline(self) -> float:
        """When the timeout passes, by the clock of the event loop."""
        return self._started + self.timeout

    @contextmanager
    def annotating_errors(self, last_failure: Callable[[Address], str | None]) -> Iterator[None]:
        """Add peer, subject and times to every error inside.

        A timeout inside means that the message was not written yet: after that, the deadline of
        the reply applies.
        """
        try:
            yield
        except MessagingError as error:
            raise self._annotate(error) from error.__cause__
        except TimeoutError:
            reason = last_failure(self.target)
            detail = f"; the last attempt: {reason}" if reason else ", or the peer reads too slowly"
            timeout = ReplyTimeoutError(
                f"no connection in time{detail}", outcome=Outcome.NOT_SENT, retryable=True
            )
            raise self._annotate(timeout) from None

    def _annotate(self, error: MessagingError) -> MessagingError:
        return error.with_context(
            peer=self.peer,
            subject=self.subject,
            elapsed_s=self._now() - self._started,
            timeout_s=self.timeout,
        )


class PeerIfKnown(str):
    """A name that the peer must have where the protocol tells names, and may have elsewhere.

    For layers that identify their peers by other means too; a plain string must be checked.
    """

    __slots__ = ()


def wrong_peer_error(
    expected: str | None, names: Collection[str] | None, place: str
) -> WrongPeerError | None:
    """Return the error unless the peer has the expected name; None as names means unknown."""
    if expected is None or (names is None and isinstance(expected, PeerIfKnown)):
        return None
    if names is None:
        return WrongPeerError(
            f"cannot check that node {expected!r} answers there: this version of the protocol "
            "tells no names without TLS; use TLS or version 3, or leave out the expected peer"
        )
    if expected in names:
        return None
    return WrongPeerError(f"expected node {expected!r}, but connected to {place}")


def validate_message(subject: str, payload: Payload) -> bytes:
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
    """Return the timeout, capped at what a frame can carry."""
    if not timeout > 0:
        raise ConfigError(f"timeout={timeout!r} must be more than 0 seconds")
    return min(float(timeout), _TIMEOUT_S_MAX)


def check_size(subject: str, data: bytes, maximum: int) -> None:
    """Raise MessageTooLargeError if the message exceeds the limit of the connection."""
    size = len(data) + len(subject.encode())
    if size > maximum:
        raise MessageTooLargeError(
            f"a message of {size} bytes exceeds the {maximum} this connection carries"
        )
