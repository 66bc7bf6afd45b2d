"""Error replies: small, typed, and never answered."""

import msgspec
import pytest

from postroad.cells import (
    CellAddress,
    CellPath,
    Envelope,
    Failure,
    HopLimit,
    Kind,
    MessageExpired,
    NoRoute,
    RoutingError,
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
    RequestTimeout,
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


@pytest.mark.parametrize("error", [NoRoute, HopLimit, MessageExpired])
def test_a_failure_is_raised_as_what_it_is(error: type[RoutingError]) -> None:
    reply = make_error_reply(FAILED, Failure.of(error, "why", hop=HOP, at="S2"), id=TWO)
    assert (reply.kind, reply.answers, reply.content) == (Kind.ERROR, ONE, FAILURE_CONTENT)
    raised = decode_failure(reply.payload).to_error()
    assert type(raised) is error
    assert raised.retryable == error.retryable
    assert raised.outcome is Outcome.KNOWN
    assert str(raised) == "why [subject 'z@S2' to S2; outcome known]"


def test_an_error_nobody_knows_is_a_failure_elsewhere() -> None:
    failure = Failure.of(RequestTimeout, "late", hop=None, at="S2")
    raised = failure.to_error()
    assert isinstance(raised, RemoteHandlerFailure)
    assert raised.remote_code == RequestTimeout.code
    assert raised.subject is None
    assert isinstance(raised, MessagingError)


def test_nothing_of_the_payload_travels_back() -> None:
    reply = make_error_reply(FAILED, Failure.of(NoRoute, "why", hop=HOP, at="S2"), id=TWO)
    assert len(reply.payload) < 100
    assert (reply.session, reply.headers) == ("s", {"traceparent": "t"})
    assert str(reply.source) == "*@S2"


def test_an_error_is_never_answered() -> None:
    failure = Failure.of(NoRoute, "why", hop=HOP, at="S2")
    reply = make_error_reply(FAILED, failure, id=TWO)
    with pytest.raises(LocalProtocolError, match="this error of"):
        make_error_reply(reply, failure, id=ONE)


def test_a_long_text_is_cut_and_a_broken_one_is_mended() -> None:
    failure = Failure.of(NoRoute, "\ud800" + "x" * 5_000, hop=HOP, at="S2")
    assert len(failure.text) == TEXT_CHARACTERS_MAX
    assert failure.text.startswith("?x")
    reply = make_error_reply(FAILED, failure, id=TWO)
    assert decode_failure(reply.payload) == failure


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, "why"]),
        msgspec.msgpack.encode([1, "why", None, "local"]),
        msgspec.msgpack.encode([1, "x" * 1_025, None, "S2"]),
        bytes(FAILURE_BYTES_MAX + 1),
        b"\x93\x01\xa1\xff\xc0",
    ],
)
def test_bytes_that_are_no_failure(payload: bytes) -> None:
    with pytest.raises(MalformedPayload, match="failure"):
        decode_failure(payload)
