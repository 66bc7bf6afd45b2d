"""What two stores say to each other."""

from typing import Any, TypeAlias

import msgspec
import pytest

from postroad.core.errors import MalformedPayloadError, UsageError
from postroad.durable.bridges.protocol import (
    OLDEST,
    VERSION,
    MessageRejection,
    StreamAck,
    StreamOpen,
    StreamWindow,
    WindowStatus,
    WireBatch,
    agree,
    decode_stream_message,
    encode,
)
from tests.support.cases import each

ID = b"0123456789abcdef"
CHAIN = b"f" * 16
OFFER = StreamOpen(ID, 1, 2, 3)
ANSWER = StreamAck(
    WindowStatus.FULL, 9, CHAIN, 0, [MessageRejection(8, "too large", "9 bytes; 8 are allowed")]
)
WINDOW = StreamWindow(
    ID, 1, 2, 3, 4, 5, CHAIN, [WireBatch(1, CHAIN, b"x"), WireBatch(2, CHAIN, None)]
)

Message: TypeAlias = StreamOpen | StreamAck | StreamWindow


def read(kind: Any, payload: bytes) -> Message:
    """Decode a message of a kind that only the test knows."""
    message: Message = decode_stream_message(kind, payload)
    return message


def test_messages_are_read_back_with_their_version() -> None:
    for message in (OFFER, ANSWER, WINDOW):
        assert read(type(message), encode(message)) == message, message
    assert OFFER.version == WINDOW.version == VERSION
    assert (
        decode_stream_message(StreamOpen, encode(StreamOpen(ID, 1, 2, 3, version=9))).version == 9
    )


@pytest.mark.parametrize("kind", [StreamOpen, StreamAck, StreamWindow], ids=lambda it: it.__name__)
@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x80", b"\x90", b"\x91" * 5_000], ids=repr)
def test_nonsense_is_malformed(kind: type[Message], payload: bytes) -> None:
    with pytest.raises(MalformedPayloadError, match=f"malformed {kind.__name__}: "):
        read(kind, payload)


@each(
    (OFFER, "store", b"short"),
    (OFFER, "store", "text"),
    (OFFER, "epoch", -1),
    (OFFER, "epoch", 1 << 62),
    (OFFER, "token", None),
    (OFFER, "acked", 1 << 63),
    (ANSWER, "status", 9),
    (ANSWER, "watermark", -1),
    (ANSWER, "chain", b""),
    (ANSWER, "credit", 1 << 63),
    (ANSWER, "rejections", [[-1, "a", "b"]]),
    (ANSWER, "rejections", None),
    (WINDOW, "now_ms", 1 << 62),
    (WINDOW, "first", -1),
    (WINDOW, "previous", b"x" * 17),
    (WINDOW, "batches", [[0, CHAIN, b""]]),
    (WINDOW, "batches", [[1 << 16, CHAIN, None]]),
    (WINDOW, "batches", [[1, CHAIN[1:], None]]),
)
def test_fields_that_no_store_has_room_for(message: Message, field: str, value: object) -> None:
    payload = encode(msgspec.structs.replace(message, **{field: value}))
    with pytest.raises(MalformedPayloadError):
        read(type(message), payload)


@each(
    # What the sender speaks, newest and oldest; what they agree on.
    (VERSION, VERSION, VERSION),
    (VERSION, None, VERSION),
    (VERSION + 1, VERSION, VERSION),
    (VERSION + 5, 1, VERSION),
    (OLDEST, None, OLDEST),
)
def test_newest_version_that_both_speak_is_agreed_on(
    newest: int, oldest: int | None, agreed: int
) -> None:
    offer = decode_stream_message(StreamOpen, encode(StreamOpen(ID, 1, 2, 3, newest, oldest)))
    assert agree(offer) == agreed


@each((VERSION + 1, None), (VERSION + 2, VERSION + 1), (OLDEST - 1, None), (OLDEST - 1, 0))
def test_version_that_one_does_not_speak_is_refused(newest: int, oldest: int | None) -> None:
    with pytest.raises(UsageError, match=f"newest version of the exchange is {newest}"):
        agree(StreamOpen(ID, 1, 2, 3, newest, oldest))


def test_messages_of_nodes_that_knew_one_version_are_understood() -> None:
    offer, answer = (msgspec.msgpack.decode(encode(message)) for message in (OFFER, ANSWER))
    assert agree(decode_stream_message(StreamOpen, msgspec.msgpack.encode([*offer[:4], 1]))) == 1
    assert decode_stream_message(StreamAck, msgspec.msgpack.encode(answer[:5])).version == 1
