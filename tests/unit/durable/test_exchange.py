"""What two stores say to each other."""

from typing import Any, TypeAlias

import msgspec
import pytest

from postroad.core.errors import MalformedPayloadError, UsageError
from postroad.durable.exchange import (
    OLDEST,
    VERSION,
    Answer,
    Offer,
    Refusal,
    SentPage,
    Verdict,
    Window,
    agree,
    decode,
    encode,
)
from tests.support.cases import each

ID = b"0123456789abcdef"
CHAIN = b"f" * 16
OFFER = Offer(ID, 1, 2, 3)
ANSWER = Answer(Verdict.FULL, 9, CHAIN, 0, [Refusal(8, "too large", "9 bytes; 8 are allowed")])
WINDOW = Window(ID, 1, 2, 3, 4, 5, CHAIN, [SentPage(1, CHAIN, b"x"), SentPage(2, CHAIN, None)])

Message: TypeAlias = Offer | Answer | Window


def read(kind: Any, payload: bytes) -> Message:
    """Decode a message of a kind that only the test knows."""
    message: Message = decode(kind, payload)
    return message


def test_messages_are_read_back_with_their_version() -> None:
    for message in (OFFER, ANSWER, WINDOW):
        assert read(type(message), encode(message)) == message, message
    assert OFFER.version == WINDOW.version == VERSION
    assert decode(Offer, encode(Offer(ID, 1, 2, 3, version=9))).version == 9


@pytest.mark.parametrize("kind", [Offer, Answer, Window], ids=lambda it: it.__name__)
@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x80", b"\x90", b"\x91" * 5_000], ids=repr)
def test_nonsense_is_malformed(kind: type[Message], payload: bytes) -> None:
    with pytest.raises(MalformedPayloadError, match=f"no {kind.__name__.lower()}: "):
        read(kind, payload)


@each(
    (OFFER, "store", b"short"),
    (OFFER, "store", "text"),
    (OFFER, "epoch", -1),
    (OFFER, "epoch", 1 << 62),
    (OFFER, "token", None),
    (OFFER, "settled", 1 << 63),
    (ANSWER, "verdict", 9),
    (ANSWER, "watermark", -1),
    (ANSWER, "chain", b""),
    (ANSWER, "credit", 1 << 63),
    (ANSWER, "refusals", [[-1, "a", "b"]]),
    (ANSWER, "refusals", None),
    (WINDOW, "now_ms", 1 << 62),
    (WINDOW, "first", -1),
    (WINDOW, "previous", b"x" * 17),
    (WINDOW, "pages", [[0, CHAIN, b""]]),
    (WINDOW, "pages", [[1 << 16, CHAIN, None]]),
    (WINDOW, "pages", [[1, CHAIN[1:], None]]),
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
    offer = decode(Offer, encode(Offer(ID, 1, 2, 3, newest, oldest)))
    assert agree(offer) == agreed


@each((VERSION + 1, None), (VERSION + 2, VERSION + 1), (OLDEST - 1, None), (OLDEST - 1, 0))
def test_version_that_one_does_not_speak_is_refused(newest: int, oldest: int | None) -> None:
    with pytest.raises(UsageError, match=f"newest version of the exchange is {newest}"):
        agree(Offer(ID, 1, 2, 3, newest, oldest))


def test_messages_of_nodes_that_knew_one_version_are_understood() -> None:
    offer, answer = (msgspec.msgpack.decode(encode(message)) for message in (OFFER, ANSWER))
    assert agree(decode(Offer, msgspec.msgpack.encode([*offer[:4], 1]))) == 1
    assert decode(Answer, msgspec.msgpack.encode(answer[:5])).version == 1
