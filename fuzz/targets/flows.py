"""What flows say to each other, and what is kept of them: letters, messages and records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from fuzz.target import Target, prefixes, require
from postroad.core.errors import ConfigError, Reject
from postroad.durable.arrivals import ExternalMessage, decode_arrival
from postroad.flows.inbox.requests import decode_request
from postroad.flows.machine.attributes import parse_conditions
from postroad.flows.machine.history import (
    CommandKind,
    HistoryEntry,
    decode_history_entry,
    encode_history_entry,
)
from postroad.flows.machine.requests import (
    CancelRequest,
    ChildEnded,
    ChildOutcome,
    SignalRequest,
    StartRequest,
)
from postroad.flows.machine.values import RecordedError
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

_KEY = SessionKey(1_700_000_000_000 << 20, 1)
# No column of any database is larger.
_NUMBER_MAX = 1 << 63

_MESSAGES: list[SessionMessage] = [
    SessionInit("größe", 1, "shop", b"\x01"),
    SessionInit("ask", 2, ""),
    SessionConfirm("answer", 1, "bank"),
    SessionReject("it is closed", "e1"),
    SessionData(b"\x92\x01\xa1x"),
    SessionError("e1", "Insolvent", "no money"),
    SessionError("e1"),
    SessionClose(),
]
_LETTERS = [
    # One bit away from a session that cannot be one, and from one opened by the wrong end.
    SessionEnvelope(SessionKey(1, 0), False, [SessionInit("a", 1, "")]),
    SessionEnvelope(_KEY, False, [_MESSAGES[0], _MESSAGES[4]]),
    SessionEnvelope(_KEY, True, [*_MESSAGES[2:]]),
]
_REQUESTS = [
    StartRequest("order 7", "shop.order", b"\x91\x07"),
    SignalRequest("order 7", "paid", b"\xc3"),
    CancelRequest("tx:1", "not needed"),
    ChildEnded("0000000000000001", "tx:1", ChildOutcome(b"\x01")),
    ChildEnded("0000000000000001", "tx:1", ChildOutcome(None, RecordedError("a:B", "c"))),
]
_ARRIVALS = [
    ExternalMessage(msgspec.msgpack.encode(_REQUESTS[0])),
    ExternalMessage(b"", "größe", b"12345678"),
]
_RECORDS = [
    HistoryEntry(
        position=(0,), kind=CommandKind.STEP, name="pay", digest=b"12345678", at_ms=1, value=b"\x01"
    ),
    HistoryEntry(
        position=(2, 0, 1),
        kind=CommandKind.RECEIVE,
        name="beta, gamma",
        digest=b"",
        at_ms=1_700_000_000_000,
        error=RecordedError("builtins:ValueError", "x", b"\x90"),
        sessions=(1, 2),
        peers=("beta", "gamma"),
    ),
]


def check_reading(
    decode: Callable[[bytes], object],
    encode: Callable[[object], bytes],
    refusal: type[Exception] | tuple[type[Exception], ...],
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
    check_reading(decode_session_envelope, _encode_letter, Reject, data)
    try:
        envelope = decode_session_envelope(data)
    except Reject:
        return
    require(bool(envelope.messages), "a letter that says nothing")
    require(0 < envelope.key.flow < _NUMBER_MAX, f"{envelope.key} fits no table")
    require(0 <= envelope.key.number < _NUMBER_MAX, f"{envelope.key} fits no table")
    openings = [index for index, it in enumerate(envelope.messages) if isinstance(it, SessionInit)]
    require(openings in ([], [0]), "a session is opened in the midst of it")
    require(
        not (openings and envelope.is_for_initiator), "the initiator is told of its own session"
    )


def _encode_letter(letter: object) -> bytes:
    assert isinstance(letter, SessionEnvelope)
    return encode_session_envelope(letter)


def _encode_message(message: object) -> bytes:
    assert isinstance(message, SessionMessage)
    return encode_session_message(message)


def _encode_record(record: object) -> bytes:
    assert isinstance(record, HistoryEntry)
    return encode_history_entry(record)


def check_condition(data: bytes) -> None:
    """Any text is a condition or refused; what is read can be compared with anything."""
    try:
        conditions = parse_conditions([data.decode(errors="replace")])
    except ConfigError:
        return
    for value in ("ann", 5, 1.5, True):
        all(condition.matches({"customer": value}) for condition in conditions)


TARGETS = [
    Target("flows-letter", check_letter, [encode_session_envelope(it) for it in _LETTERS]),
    Target(
        "flows-message",
        partial(check_reading, decode_session_message, _encode_message, msgspec.DecodeError),
        [encode_session_message(it) for it in _MESSAGES],
    ),
    Target(
        "flows-request",
        partial(check_reading, decode_request, msgspec.msgpack.encode, Reject),
        [msgspec.msgpack.encode(it) for it in _REQUESTS],
    ),
    Target(
        "flows-arrival",
        partial(
            check_reading,
            decode_arrival,
            msgspec.msgpack.encode,
            (msgspec.DecodeError, UnicodeDecodeError, RecursionError),
        ),
        [msgspec.msgpack.encode(it) for it in _ARRIVALS],
    ),
    Target(
        "flows-condition",
        check_condition,
        [b"customer=ann", b"customer>=5", b"customer != null", "größe<1.5".encode(), b"a=[1]"],
    ),
    Target(
        "flows-record",
        partial(check_reading, decode_history_entry, _encode_record, msgspec.DecodeError),
        [encode_history_entry(entry) for entry in _RECORDS],
    ),
]
