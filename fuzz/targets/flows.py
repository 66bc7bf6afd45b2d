"""What flows say to each other, and what is kept of them: letters, messages and records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from fuzz.target import Target, prefixes, require
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
from postroad.flows.records import Kind, Record, decode_record, encode_record
from postroad.flows.values import Failure

_KEY = SessionKey(1_700_000_000_000 << 20, 1)
# No column of any database is larger.
_NUMBER_MAX = 1 << 63

_MESSAGES: list[Message] = [
    Initial("größe", 1, "shop", b"\x01"),
    Initial("ask", 2, ""),
    Confirm("answer", 1, "bank"),
    Rejection("it is closed", "e1"),
    Data(b"\x92\x01\xa1x"),
    Failed("e1", "Insolvent", "no money"),
    Failed("e1"),
    End(),
]
_LETTERS = [
    # One bit away from a session that cannot be one, and from one opened by the wrong end.
    Letter(SessionKey(1, 0), False, [Initial("a", 1, "")]),
    Letter(_KEY, False, [_MESSAGES[0], _MESSAGES[4]]),
    Letter(_KEY, True, [*_MESSAGES[2:]]),
]
_RECORDS = [
    Record(position=(0,), kind=Kind.STEP, name="pay", digest=b"12345678", at_ms=1, value=b"\x01"),
    Record(
        position=(2, 0, 1),
        kind=Kind.RECEIVE,
        name="beta, gamma",
        digest=b"",
        at_ms=1_700_000_000_000,
        failure=Failure("builtins:ValueError", "x", b"\x90"),
        sessions=(1, 2),
        peers=("beta", "gamma"),
    ),
]


def check_reading(
    decode: Callable[[bytes], object],
    encode: Callable[[object], bytes],
    refusal: type[Exception],
    data: bytes,
) -> None:
    """Any bytes are read or refused, cut off or not; what is read survives."""
    for it in (*prefixes(data), data):
        try:
            found = decode(it)
        except refusal:
            continue
        require(decode(encode(found)) == found, f"{found} does not survive encoding")


def check_letter(data: bytes) -> None:
    """Any bytes are a letter or rejected; what is read names a session that may be one."""
    check_reading(decode_letter, _encode_letter, Reject, data)
    try:
        letter = decode_letter(data)
    except Reject:
        return
    require(bool(letter.messages), "a letter that says nothing")
    require(0 < letter.key.flow < _NUMBER_MAX, f"{letter.key} fits no table")
    require(0 <= letter.key.number < _NUMBER_MAX, f"{letter.key} fits no table")
    openings = [index for index, it in enumerate(letter.messages) if isinstance(it, Initial)]
    require(openings in ([], [0]), "a session is opened in the midst of it")
    require(not (openings and letter.is_for_initiator), "the initiator is told of its own session")


def _encode_letter(letter: object) -> bytes:
    assert isinstance(letter, Letter)
    return encode_letter(letter)


def _encode_message(message: object) -> bytes:
    assert isinstance(message, Message)
    return encode_message(message)


def _encode_record(record: object) -> bytes:
    assert isinstance(record, Record)
    return encode_record(record)


TARGETS = [
    Target("flows-letter", check_letter, [encode_letter(it) for it in _LETTERS]),
    Target(
        "flows-message",
        partial(check_reading, decode_message, _encode_message, msgspec.DecodeError),
        [encode_message(it) for it in _MESSAGES],
    ),
    Target(
        "flows-record",
        partial(check_reading, decode_record, _encode_record, msgspec.DecodeError),
        [encode_record(it) for it in _RECORDS],
    ),
]
