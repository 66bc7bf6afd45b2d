"""Error replies: small, typed, and never answered."""

import msgspec
import pytest

from postroad.cells import (
    CellAddress,
    CellBusy,
    CellPath,
    Envelope,
    Failure,
    HopLimit,
    Kind,
    MessageExpired,
    NoRoute,
    decode_failure,
    make_error_reply,
)
from postroad.cells.failure import FAILURE_BYTES_MAX, FAILURE_CONTENT, TEXT_CHARACTERS_MAX
from postroad.core.errors import (
    LocalProtocolError,
    MalformedPayload,
    MessagingError,
    Outcome,
    RemoteHandlerFailure,
    RemoteProtocolFailure,
    RequestTimeout,
    StoreUnavailable,
)

ONE, TWO = bytes(15) + b"\1", bytes(15) + b"\2"
HOP = CellAddress("z", "S2")
FAILED = Envelope(
    id=ONE,
    destination=CellPath.of(HOP),
    source=CellPath.parse("p@S1:*@S1"),
    session="s",
    headers={"traceparent": "t"},
    payload=b"x" * 1_000_000,
)


def test_a_failure_is_raised_as_what_it_is_if_that_is_known(subtests: pytest.Subtests) -> None:
    for error in [NoRoute, HopLimit, MessageExpired, CellBusy]:
        with subtests.test(error=error):
            reply = make_error_reply(FAILED, Failure.of(error, "why", hop=HOP, at="S2"), id=TWO)
            assert (reply.kind, reply.answers, reply.content) == (Kind.ERROR, ONE, FAILURE_CONTENT)
            raised = decode_failure(reply.payload).to_error()
            assert type(raised) is error
            assert raised.retryable == error.retryable
            assert raised.outcome is Outcome.KNOWN
            assert str(raised) == "why [subject 'z@S2' to S2; outcome known]"

    failure = Failure.of(RequestTimeout, "late", hop=None, at="S2")
    raised = failure.to_error()
    assert isinstance(raised, RemoteHandlerFailure)
    assert raised.remote_code == RequestTimeout.code
    assert raised.subject is None
    assert isinstance(raised, MessagingError)


class Untellable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_what_a_handler_raised_is_told_to_the_caller(subtests: pytest.Subtests) -> None:
    for error, code, is_retryable, text in [
        (KeyError("x"), 0, False, "'x'"),
        (ValueError(), 0, False, "ValueError"),
        (Untellable(), 0, False, "Untellable, whose text cannot be told"),
        (StoreUnavailable("full"), StoreUnavailable.code, True, "full"),
        # The handler found no way to another cell: this one did get the message.
        (NoRoute("no route for z"), NoRoute.code, True, "no route for z"),
        (CellBusy("full", retryable=False), CellBusy.code, False, "full"),
    ]:
        with subtests.test(code=code):
            reply = make_error_reply(FAILED, Failure.raised(error, hop=HOP, at="S2"), id=TWO)
            raised = decode_failure(reply.payload).to_error()
            assert type(raised) is RemoteHandlerFailure
            assert (raised.remote_code, raised.retryable, raised.detail) == (
                code,
                is_retryable,
                text,
            )
            assert (raised.peer, raised.subject, raised.outcome) == ("S2", "z@S2", Outcome.KNOWN)

    reply = make_error_reply(
        FAILED, Failure.raised(MalformedPayload("no order"), hop=HOP, at="S2"), id=TWO
    )
    raised = decode_failure(reply.payload).to_error()
    assert type(raised) is RemoteProtocolFailure
    assert (raised.detail, raised.retryable, raised.outcome) == ("no order", False, Outcome.KNOWN)

    failure = Failure.raised(ValueError("x" * 5_000), hop=HOP, at="S2")
    assert len(failure.text) == TEXT_CHARACTERS_MAX


def test_an_error_reply_carries_no_payload_and_is_never_answered() -> None:
    reply = make_error_reply(FAILED, Failure.of(NoRoute, "why", hop=HOP, at="S2"), id=TWO)
    assert len(reply.payload) < 100
    assert (reply.session, reply.headers) == ("s", {"traceparent": "t"})
    assert str(reply.source) == "*@S2"

    failure = Failure.of(NoRoute, "why", hop=HOP, at="S2")
    reply = make_error_reply(FAILED, failure, id=TWO)
    with pytest.raises(LocalProtocolError, match="this error of"):
        make_error_reply(reply, failure, id=ONE)

    failure = Failure.of(NoRoute, "\ud800" + "x" * 5_000, hop=HOP, at="S2")
    assert len(failure.text) == TEXT_CHARACTERS_MAX
    assert failure.text.startswith("?x")
    reply = make_error_reply(FAILED, failure, id=TWO)
    assert decode_failure(reply.payload) == failure


def test_bytes_that_are_no_failure_are_malformed(subtests: pytest.Subtests) -> None:
    for payload in [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, "why"]),
        msgspec.msgpack.encode([1, "why", None, "local"]),
        msgspec.msgpack.encode([1, "x" * 1_025, None, "S2"]),
        bytes(FAILURE_BYTES_MAX + 1),
        b"\x93\x01\xa1\xff\xc0",
    ]:
        with subtests.test(payload=payload), pytest.raises(MalformedPayload, match="failure"):
            decode_failure(payload)
