"""What flows tell each other: letters that are read, and garbage that is rejected."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.core.errors import Reject
from postroad.flows.sessions.messages import (
    SessionClose,
    SessionConfirm,
    SessionData,
    SessionEnvelope,
    SessionError,
    SessionInit,
    SessionKey,
    SessionMessage,
    SessionReject,
    decode_session_envelope,
    decode_session_message,
    encode_session_envelope,
    encode_session_message,
)
from tests.support.cases import each

KEY = SessionKey(7, 1)
NAMES = st.text(min_size=1, max_size=20).filter(str.isprintable)
TEXTS = st.text(max_size=20)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
OPENING: st.SearchStrategy[SessionMessage] = st.builds(
    SessionInit, NAMES, NUMBERS, TEXTS, st.none() | st.binary(max_size=40)
)
LATER: st.SearchStrategy[SessionMessage] = st.one_of(
    st.builds(SessionConfirm, NAMES, NUMBERS, TEXTS),
    st.builds(SessionReject, TEXTS, TEXTS),
    st.builds(SessionData, st.binary(max_size=40)),
    st.builds(SessionError, TEXTS, st.none() | TEXTS, st.none() | TEXTS),
    st.just(SessionClose()),
)
KEYS = st.builds(SessionKey, st.integers(1, (1 << 63) - 1), st.integers(0, (1 << 31) - 1))


@given(KEYS, st.booleans(), st.none() | OPENING, st.lists(LATER, min_size=1, max_size=6))
def test_session_envelope_round_trips(
    key: SessionKey, is_back: bool, opening: SessionMessage | None, messages: list[SessionMessage]
) -> None:
    if opening is not None and not is_back:
        messages = [opening, *messages]
    envelope = SessionEnvelope(key, is_back, messages)
    assert decode_session_envelope(encode_session_envelope(envelope)) == envelope


@given(OPENING | LATER)
def test_message_comes_back(message: SessionMessage) -> None:
    assert decode_session_message(encode_session_message(message)) == message


@given(st.binary())
@example(b"")
@example(b"\x93\x92\x07\x01\xc2\x91\x91\xa1x\x00")
@example(b"\x91" * 100_000)
def test_anything_else_is_rejected_and_nothing_worse(body: bytes) -> None:
    try:
        decode_session_envelope(body)
    except Reject as rejected:
        assert str(rejected)


@given(st.data())
def test_corrupted_session_envelope_is_rejected(data: st.DataObject) -> None:
    body = bytearray(
        encode_session_envelope(
            SessionEnvelope(KEY, False, [SessionInit("ask", 1, "", b"x"), SessionData(b"y")])
        )
    )
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    try:
        decode_session_envelope(bytes(body))
    except Reject as rejected:
        assert str(rejected)


@each(
    (KEY, False, [], "0 messages"),
    (KEY, True, [SessionInit("ask", 1, "")], "in the middle"),
    (KEY, False, [SessionData(b""), SessionInit("ask", 1, "")], "in the middle"),
    (KEY, False, [SessionInit("a", 1, ""), SessionInit("a", 1, "")], "in the middle"),
    (KEY, False, [SessionInit("a" * 201, 1, "")], "invalid flow name"),
    (KEY, True, [SessionConfirm("a" * 201, 1, "")], "invalid flow name"),
    (KEY, False, [SessionInit("", 1, "")], "invalid flow name"),
    (KEY, False, [SessionInit("a\n", 1, "")], "invalid flow name"),
    (SessionKey(0, 1), False, [SessionClose()], "invalid session key"),
    (SessionKey(-1, 1), False, [SessionClose()], "invalid session key"),
    (SessionKey(1 << 63, 1), False, [SessionClose()], "invalid session key"),
    (SessionKey(1, -1), False, [SessionClose()], "invalid session key"),
    (SessionKey(1, 1 << 31), False, [SessionClose()], "invalid session key"),
)
def test_invalid_session_envelopes_are_rejected(
    key: SessionKey, is_back: bool, messages: Sequence[SessionMessage], reason: str
) -> None:
    with pytest.raises(Reject, match=reason):
        decode_session_envelope(
            encode_session_envelope(SessionEnvelope(key, is_back, list(messages)))
        )


def test_session_envelopes_of_other_versions() -> None:
    body = encode_session_envelope(SessionEnvelope(KEY, True, [SessionClose()] * 100_001))
    with pytest.raises(Reject, match="100001 messages"):
        decode_session_envelope(body)
    longer = msgspec.msgpack.encode(["d", b"x", "something new"])
    assert decode_session_message(longer) == SessionData(b"x")


@given(st.binary())
def test_kept_message_is_read_or_a_decode_error(encoded: bytes) -> None:
    try:
        decode_session_message(encoded)
    except msgspec.DecodeError:
        return
