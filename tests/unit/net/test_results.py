"""How a request ended, and the error that makes of it."""

import pytest

from postroad.core.errors import (
    ConnectFailed,
    ConnectionClosed,
    NoRemoteHandler,
    NotRunning,
    Outcome,
    RemoteHandlerFailure,
    RemoteProtocolFailure,
    RequestTimeout,
)
from postroad.net.results import EXPIRED, LinkDown, error_of, stopped_while_in_flight
from postroad.wire import Reply, Status


def test_replies_that_are_errors_are_told_as_such(subtests: pytest.Subtests) -> None:
    for reply, kind, detail, retryable in [
        (Reply(1, Status.NO_HANDLER, b""), NoRemoteHandler, "no handler for 'echo'", True),
        (Reply(1, Status.NO_HANDLER, b"echo"), NoRemoteHandler, "no handler for 'echo'", True),
        (Reply(1, Status.NO_HANDLER, b"a reason"), NoRemoteHandler, "a reason", False),
        (Reply(1, Status.NO_HANDLER, b"why", 0, True), NoRemoteHandler, "why", True),
        (Reply(1, Status.STOPPING, b""), NoRemoteHandler, "the peer is stopping", True),
        (Reply(1, Status.STOPPING, b"bye"), NoRemoteHandler, "bye", True),
        (Reply(1, Status.PROTOCOL_FAILED, b""), RemoteProtocolFailure, "could not parse", False),
        (Reply(1, Status.PROTOCOL_FAILED, b"no JSON"), RemoteProtocolFailure, "no JSON", False),
        (Reply(1, Status.HANDLER_FAILED, b"no"), RemoteHandlerFailure, "no", False),
        (Reply(1, Status.HANDLER_FAILED, b""), RemoteHandlerFailure, "", False),
        (Reply(1, Status.HANDLER_FAILED, b"no", 3300, True), RemoteHandlerFailure, "no", True),
        (Reply(1, Status.HANDLER_FAILED, b"\xff"), RemoteHandlerFailure, "\ufffd", False),
    ]:
        with subtests.test(detail=detail):
            error = error_of(reply, "echo")
            assert type(error) is kind
            assert detail in error.detail
            assert error.retryable is retryable
            assert error.outcome is Outcome.KNOWN


def test_remote_code_survives_being_told_of_a_message() -> None:
    error = error_of(Reply(1, Status.HANDLER_FAILED, b"no", ConnectFailed.code, True), "echo")
    told = error.about(peer="host:1", subject="echo", elapsed_s=0.5, timeout_s=5.0)
    assert isinstance(told, RemoteHandlerFailure)
    assert told.remote_code == ConnectFailed.code
    assert told.retryable


def test_expired_or_stopped_requests_have_an_unknown_outcome() -> None:
    error = error_of(EXPIRED, "echo")
    assert isinstance(error, RequestTimeout)
    assert error.outcome is Outcome.UNKNOWN
    assert EXPIRED.status != 0

    error = error_of(stopped_while_in_flight(), "echo")
    assert isinstance(error, NotRunning)
    assert error.outcome is Outcome.UNKNOWN
    assert not error.retryable


def test_one_end_is_told_of_many_requests() -> None:
    down = LinkDown(ConnectionClosed("gone"))
    told = [
        error_of(down, subject).about(peer="host:1", subject=subject, elapsed_s=1.0)
        for subject in ("a", "b")
    ]
    assert [error.subject for error in told] == ["a", "b"]
    assert down.error.subject is None
