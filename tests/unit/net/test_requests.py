"""How a request ended, and the error that makes of it."""

from typing import Any

import pytest

from postroad.core.errors import (
    ConnectError,
    ConnectionClosedError,
    MessagingError,
    NoHandlerError,
    NotRunningError,
    Outcome,
    RemoteDecodeError,
    RemoteHandlerError,
    ReplyTimeoutError,
)
from postroad.net.requests import (
    EXPIRED,
    ConnectionDown,
    error_from_result,
    stopped_while_in_flight,
)
from postroad.wire import ReplyFrame, ReplyStatus


def test_error_from_result_error_reply_maps_to_exception(subtests: pytest.Subtests) -> None:
    no_handler, failed = ReplyStatus.NO_HANDLER, ReplyStatus.HANDLER_FAILED
    stopping, unparsed = ReplyStatus.STOPPING, ReplyStatus.PROTOCOL_FAILED
    replies: list[tuple[tuple[Any, ...], type[MessagingError], str, bool]] = [
        ((no_handler, b""), NoHandlerError, "no handler for 'echo'", True),
        ((no_handler, b"echo"), NoHandlerError, "no handler for 'echo'", True),
        ((no_handler, b"a reason"), NoHandlerError, "a reason", False),
        ((no_handler, b"why", 0, True), NoHandlerError, "why", True),
        ((stopping, b""), NoHandlerError, "the peer is stopping", True),
        ((stopping, b"bye"), NoHandlerError, "bye", True),
        ((unparsed, b""), RemoteDecodeError, "could not parse", False),
        ((unparsed, b"no JSON"), RemoteDecodeError, "no JSON", False),
        ((failed, b"no"), RemoteHandlerError, "no", False),
        ((failed, b""), RemoteHandlerError, "", False),
        ((failed, b"no", 3300, True), RemoteHandlerError, "no", True),
        ((failed, b"\xff"), RemoteHandlerError, "\ufffd", False),
    ]
    for fields, kind, detail, retryable in replies:
        with subtests.test(detail=detail):
            error = error_from_result(ReplyFrame(1, *fields), "echo")
            assert type(error) is kind
            assert detail in error.detail
            assert error.retryable is retryable
            assert error.outcome is Outcome.REPLIED


def test_error_with_context_keeps_remote_code() -> None:
    error = error_from_result(
        ReplyFrame(1, ReplyStatus.HANDLER_FAILED, b"no", ConnectError.code, True), "echo"
    )
    copy = error.with_context(peer="host:1", subject="echo", elapsed_s=0.5, timeout_s=5.0)
    assert isinstance(copy, RemoteHandlerError)
    assert copy.remote_code == ConnectError.code
    assert copy.retryable


def test_expired_or_stopped_requests_have_an_unknown_outcome() -> None:
    error = error_from_result(EXPIRED, "echo")
    assert isinstance(error, ReplyTimeoutError)
    assert error.outcome is Outcome.UNKNOWN
    assert EXPIRED.status != 0

    error = error_from_result(stopped_while_in_flight(), "echo")
    assert isinstance(error, NotRunningError)
    assert error.outcome is Outcome.UNKNOWN
    assert not error.retryable


def test_connection_down_is_shared_by_many_requests() -> None:
    down = ConnectionDown(ConnectionClosedError("gone"))
    errors = [
        error_from_result(down, subject).with_context(peer="host:1", subject=subject, elapsed_s=1.0)
        for subject in ("a", "b")
    ]
    assert [error.subject for error in errors] == ["a", "b"]
    assert down.error.subject is None
