"""What flows tell each other: letters that are read, and garbage that is rejected."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.core.errors import Reject
from postroad.flows.messages import (
    Confirm,
    Data,
    End,
    Failed,
    Initial,
    Letter,
    Message,
    Rejection,
    SessionKey,
    decode_letter,
    decode_message,
    encode_letter,
    encode_message,
)
from tests.support.cases import each

KEY = SessionKey(7, 1)
NAMES = st.text(min_size=1, max_size=20).filter(str.isprintable)
TEXTS = st.text(max_size=20)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
OPENING: st.SearchStrategy[Message] = st.builds(
    Initial, NAMES, NUMBERS, TEXTS, st.none() | st.binary(max_size=40)
)
LATER: st.SearchStrategy[Message] = st.one_of(
    st.builds(Confirm, NAMES, NUMBERS, TEXTS),
    st.builds(Rejection, TEXTS, TEXTS),
    st.builds(Data, st.binary(max_size=40)),
    st.builds(Failed, TEXTS, st.none() | TEXTS, st.none() | TEXTS),
    st.just(End()),
)
KEYS = st.builds(SessionKey, st.integers(1, (1 << 63) - 1), st.integers(0, (1 << 31) - 1))


@given(KEYS, st.booleans(), st.none() | OPENING, st.lists(LATER, min_size=1, max_size=6))
def test_letter_comes_back(
    key: SessionKey, is_back: bool, opening: Message | None, messages: list[Message]
) -> None:
    if opening is not None and not is_back:
        messages = [opening, *messages]
    letter = Letter(key, is_back, messages)
    assert decode_letter(encode_letter(letter)) == letter


@given(OPENING | LATER)
def test_message_comes_back(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary())
@example(b"")
@example(b"\x93\x92\x07\x01\xc2\x91\x91\xa1x\x00")
@example(b"\x91" * 100_000)
def test_anything_else_is_rejected_and_nothing_worse(body: bytes) -> None:
    try:
        decode_letter(body)
    except Reject as rejected:
        assert str(rejected)


@given(st.data())
def test_so_is_a_letter_with_another_byte(data: st.DataObject) -> None:
    body = bytearray(encode_letter(Letter(KEY, False, [Initial("ask", 1, "", b"x"), Data(b"y")])))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    try:
        decode_letter(bytes(body))
    except Reject as rejected:
        assert str(rejected)


@each(
    (KEY, False, [], "0 messages"),
    (KEY, True, [Initial("ask", 1, "")], "in the midst"),
    (KEY, False, [Data(b""), Initial("ask", 1, "")], "in the midst"),
    (KEY, False, [Initial("a", 1, ""), Initial("a", 1, "")], "in the midst"),
    (KEY, False, [Initial("a" * 201, 1, "")], "no name of a flow"),
    (KEY, True, [Confirm("a" * 201, 1, "")], "no name of a flow"),
    (KEY, False, [Initial("", 1, "")], "no name of a flow"),
    (KEY, False, [Initial("a\n", 1, "")], "no name of a flow"),
    (SessionKey(0, 1), False, [End()], "no session"),
    (SessionKey(-1, 1), False, [End()], "no session"),
    (SessionKey(1 << 63, 1), False, [End()], "no session"),
    (SessionKey(1, -1), False, [End()], "no session"),
    (SessionKey(1, 1 << 31), False, [End()], "no session"),
)
def test_what_no_node_of_good_will_sends(
    key: SessionKey, is_back: bool, messages: Sequence[Message], reason: str
) -> None:
    with pytest.raises(Reject, match=reason):
        decode_letter(encode_letter(Letter(key, is_back, list(messages))))


def test_letters_and_messages_of_other_versions() -> None:
    body = encode_letter(Letter(KEY, True, [End()] * 100_001))
    with pytest.raises(Reject, match="100001 messages"):
        decode_letter(body)
    longer = msgspec.msgpack.encode(["d", b"x", "something new"])
    assert decode_message(longer) == Data(b"x")


@given(st.binary())
def test_kept_message_is_read_or_a_decode_error(encoded: bytes) -> None:
    try:
        decode_message(encoded)
    except msgspec.DecodeError:
        return
