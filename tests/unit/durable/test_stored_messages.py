"""Letters and pages: what is written is read back, and anything else is malformed."""

from typing import Any

import msgspec
import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.durable.stored_messages import (
    PRIORITY_MAX,
    StoredMessage,
    decode_batch,
    decode_stored_message,
    encode_batch,
    encode_stored_message,
    join_batch,
)
from tests.support.cases import each
from tests.support.durable.nodes import make_letter, make_letters

FULL = StoredMessage(
    id=(1 << 63) - 1,
    queue="größe",
    body=bytes(range(256)),
    sent_ms=1,
    key="k",
    headers={"a": "b"},
    priority=-PRIORITY_MAX,
    deliver_at_ms=2,
    expires_ms=3,
    reply_to="answers",
    in_reply_to=4,
)


def test_messages_and_batches_round_trip() -> None:
    for letter in (make_letter(0, body=b""), FULL):
        assert decode_stored_message(encode_stored_message(letter)) == letter, letter
    for count in (0, 1, 15, 16, 512, 65_535):
        letters = make_letters(count)
        assert decode_batch(encode_batch(letters)) == letters, count
    for count in (0, 1, 15, 16, 300):
        letters = make_letters(count)
        assert join_batch(
            [encode_stored_message(message) for message in letters]
        ) == msgspec.msgpack.encode(letters), count
    later = msgspec.msgpack.encode([[*msgspec.structs.astuple(FULL), "something new"]])
    assert decode_batch(later) == [FULL]


@each(
    b"",
    b"\xc1",
    msgspec.msgpack.encode({}),
    msgspec.msgpack.encode([[1, "q", b""]]),
    msgspec.msgpack.encode([[1, "q", "text", 0]]),
    msgspec.msgpack.encode([["1", "q", b"", 0]]),
    b"\x91\x94\x01\xa1\xff\xc4\x00\x00",
    encode_batch(make_letters(2))[:-1],
    encode_batch(make_letters(2)) + b"\0",
    b"\x91" * 10_000,
)
def test_invalid_batch_is_rejected(page: bytes) -> None:
    with pytest.raises(MalformedPayloadError, match="invalid batch of messages"):
        decode_batch(page)


@each(
    ("id", -1),
    ("id", 1 << 63),
    ("sent_ms", -1),
    ("sent_ms", (1 << 60) + 1),
    ("deliver_at_ms", 1 << 62),
    ("expires_ms", -5),
    ("priority", PRIORITY_MAX + 1),
    ("priority", -PRIORITY_MAX - 1),
    ("in_reply_to", 1 << 63),
)
def test_numbers_that_a_store_has_no_room_for_are_refused(field: str, value: int) -> None:
    page = encode_batch([msgspec.structs.replace(FULL, **{field: value})])
    with pytest.raises(MalformedPayloadError):
        decode_batch(page)


@each(
    ({}, True),
    ({"key": "k", "expires_ms": 1}, True),
    ({"priority": -1}, False),
    ({"priority": 1}, False),
    ({"deliver_at_ms": 1}, False),
)
def test_plain_messages_are_fifo(fields: dict[str, Any], is_plain: bool) -> None:
    assert make_letter(**fields).is_fifo is is_plain
