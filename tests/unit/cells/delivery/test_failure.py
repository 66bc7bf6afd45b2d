"""Error replies: small, typed, and never answered."""

import msgspec
import pytest

from postroad.cells import (
    CellAddress,
    CellBusyError,
    CellPath,
    HopLimitExceededError,
    MessageExpiredError,
    NoRouteError,
)
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.failure import (
    FAILURE_BYTES_MAX,
    FAILURE_CONTENT_TYPE,
    TEXT_CHARACTERS_MAX,
    DeliveryFailure,
    decode_failure,
    make_error_reply,
)
from postroad.core.errors import (
    LocalProtocolError,
    MalformedPayloadError,
    MessagingError,
    Outcome,
    RemoteDecodeError,
    RemoteHandlerError,
    ReplyTimeoutError,
    StoreUnavailableError,
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


def test_failure_of_a_known_code_raises_its_class(subtests: pytest.Subtests) -> None:
    for error in [NoRouteError, HopLimitExceededError, MessageExpiredError, CellBusyError]:
        with subtests.test(error=error):
            reply = make_error_reply(
                FAILED, DeliveryFailure.of(error, "why", hop=HOP, at="S2"), id=TWO
            )
            assert (reply.kind, reply.in_reply_to, reply.content_type) == (
                MessageKind.ERROR,
                ONE,
                FAILURE_CONTENT_TYPE,
            )
            raised = decode_failure(reply.payload).to_error()
            assert type(raised) is error
            assert raised.retryable == error.retryable
            assert raised.outcome is Outcome.REPLIED
            assert str(raised) == "why [subject 'z@S2' to S2; outcome replied]"

    failure = DeliveryFailure.of(ReplyTimeoutError, "late", hop=None, at="S2")
    raised = failure.to_error()
    assert isinstance(raised, RemoteHandlerError)
    assert raised.remote_code == ReplyTimeoutError.code
    assert raised.subject is None
    assert isinstance(raised, MessagingError)


class Untellable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_handler_exception_is_described_to_the_caller(subtests: pytest.Subtests) -> None:
    for error, code, is_retryable, text in [
        (KeyError("x"), 0, False, "'x'"),
        (ValueError(), 0, False, "ValueError"),
        (Untellable(), 0, False, "Untellable (its __str__ raised)"),
        (StoreUnavailableError("full"), StoreUnavailableError.code, True, "full"),
        # The handler found no way to another cell: this one did get the message.
        (NoRouteError("no route for z"), NoRouteError.code, True, "no route for z"),
        (CellBusyError("full", retryable=False), CellBusyError.code, False, "full"),
    ]:
        with subtests.test(code=code):
            reply = make_error_reply(
                FAILED, DeliveryFailure.raised(error, hop=HOP, at="S2"), id=TWO
            )
            raised = decode_failure(reply.payload).to_error()
            assert type(raised) is RemoteHandlerError
            assert (raised.remote_code, raised.retryable, raised.detail) == (
                code,
                is_retryable,
                text,
            )
            assert (raised.peer, raised.subject, raised.outcome) == ("S2", "z@S2", Outcome.REPLIED)

    reply = make_error_reply(
        FAILED, DeliveryFailure.raised(MalformedPayloadError("no order"), hop=HOP, at="S2"), id=TWO
    )
    raised = decode_failure(reply.payload).to_error()
    assert type(raised) is RemoteDecodeError
    assert (raised.detail, raised.retryable, raised.outcome) == ("no order", False, Outcome.REPLIED)

    failure = DeliveryFailure.raised(ValueError("x" * 5_000), hop=HOP, at="S2")
    assert len(failure.text) == TEXT_CHARACTERS_MAX


def test_an_error_reply_carries_no_payload_and_is_never_answered() -> None:
    reply = make_error_reply(
        FAILED, DeliveryFailure.of(NoRouteError, "why", hop=HOP, at="S2"), id=TWO
    )
    assert len(reply.payload) < 100
    assert (reply.session, reply.headers) == ("s", {"traceparent": "t"})
    assert str(reply.source) == "*@S2"

    failure = DeliveryFailure.of(NoRouteError, "why", hop=HOP, at="S2")
    reply = make_error_reply(FAILED, failure, id=TWO)
    with pytest.raises(LocalProtocolError, match="cannot reply to this error from"):
        make_error_reply(reply, failure, id=ONE)

    failure = DeliveryFailure.of(NoRouteError, "\ud800" + "x" * 5_000, hop=HOP, at="S2")
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
        with subtests.test(payload=payload), pytest.raises(MalformedPayloadError, match="failure"):
            decode_failure(payload)
