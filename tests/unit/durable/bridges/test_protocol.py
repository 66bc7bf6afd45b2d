"""What two stores say to each other; what is new of it, and what cannot be what it claims."""

from itertools import accumulate
from typing import Any, TypeAlias

import msgspec
import pytest

from postroad.core.errors import MalformedPayloadError, StreamDivergedError, UsageError
from postroad.durable.bridges.protocol import (
    CHAIN_BYTES,
    OLDEST,
    VERSION,
    MessageRejection,
    SequenceGap,
    StreamAck,
    StreamOpen,
    StreamWindow,
    WindowStatus,
    WireBatch,
    agree,
    decode_stream_message,
    encode,
    extend_chain,
    initial_chain,
    new_batches,
)
from tests.support.cases import each, naming
from tests.support.durable.nodes import Correspondent, make_letters

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


@pytest.mark.parametrize(
    "kind", [StreamOpen, StreamAck, StreamWindow], ids=lambda kind: kind.__name__
)
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
def test_version_agreement_selects_newest_common_version(
    newest: int, oldest: int | None, agreed: int
) -> None:
    offer = decode_stream_message(StreamOpen, encode(StreamOpen(ID, 1, 2, 3, newest, oldest)))
    assert agree(offer) == agreed


@each((VERSION + 1, None), (VERSION + 2, VERSION + 1), (OLDEST - 1, None), (OLDEST - 1, 0))
def test_unknown_protocol_version_is_rejected(newest: int, oldest: int | None) -> None:
    with pytest.raises(UsageError, match=f"newest version of the exchange is {newest}"):
        agree(StreamOpen(ID, 1, 2, 3, newest, oldest))


def test_messages_of_nodes_that_knew_one_version_are_understood() -> None:
    offer, answer = (msgspec.msgpack.decode(encode(message)) for message in (OFFER, ANSWER))
    assert agree(decode_stream_message(StreamOpen, msgspec.msgpack.encode([*offer[:4], 1]))) == 1
    assert decode_stream_message(StreamAck, msgspec.msgpack.encode(answer[:5])).version == 1


def test_initial_chain_differs_for_each_stream() -> None:
    starts = [
        initial_chain(b"store-1", 1, "beta"),
        initial_chain(b"store-2", 1, "beta"),
        initial_chain(b"store-1", 2, "beta"),
        initial_chain(b"store-1", 1, "gamma"),
        initial_chain(b"store-1", 11, "beta"),
    ]
    assert len(set(starts)) == len(starts)
    assert {len(start) for start in starts} == {CHAIN_BYTES}
    assert initial_chain(b"store-1", 1, "beta") == starts[0]


def test_chain_depends_on_stream_batches_and_order() -> None:
    start = initial_chain(b"store", 1, "beta")
    histories = [[b"a", b"b"], [b"b", b"a"], [b"ab"], [b"a", b"b", b""], [b"a"], []]
    ends = [list(accumulate(pages, extend_chain, initial=start))[-1] for pages in histories]
    assert len(set(ends)) == len(ends)
    assert extend_chain(extend_chain(start, b"a"), b"b") == ends[0]
    assert {len(end) for end in ends} == {CHAIN_BYTES}
    # Stores that exist hold chains: another function would make every peer look restored.
    chain = extend_chain(initial_chain(bytes(16), 1, "beta"), b"page")
    assert chain.hex() == "2babdeb9c3fb9885d3b3449582e997db"


PAGES = [make_letters(3), make_letters(1), make_letters(2)]


@pytest.fixture
def sender() -> Correspondent:
    return Correspondent(PAGES)


def spans(sender: Correspondent, accepted: int, window: StreamWindow) -> list[tuple[int, int]]:
    """First and last numbers of the fresh pages, after so many pages were accepted."""
    watermark = sender.firsts[accepted] - 1
    fresh = list(new_batches(watermark, sender.chains[accepted], window))
    assert all(new_batch.is_intact for new_batch in fresh)
    return [(new_batch.first, new_batch.last) for new_batch in fresh]


def test_new_batches_follow_watermark_without_gap(sender: Correspondent) -> None:
    assert spans(sender, 0, sender.window()) == [(1, 3), (4, 4), (5, 6)]
    assert spans(sender, 1, sender.window()) == [(4, 4), (5, 6)]
    assert spans(sender, 2, sender.window(1)) == [(5, 6)]
    assert spans(sender, 3, sender.window()) == []
    assert spans(sender, 3, sender.window(0, 1)) == []
    assert spans(sender, 1, sender.window(1, 2)) == [(4, 4)]
    assert spans(sender, 0, sender.window(0, 0)) == []
    for start in (1, 2):
        with naming(start), pytest.raises(SequenceGap):
            spans(sender, 0, sender.window(start))


def test_new_batches_report_changed_and_removed_batches(sender: Correspondent) -> None:
    window = sender.window()
    changed = msgspec.structs.replace(window.batches[1], data=b"\x90")
    window.batches[1] = changed
    fresh = list(new_batches(0, sender.chains[0], window))
    assert [new_batch.is_intact for new_batch in fresh] == [True, False, True]
    assert fresh[1].batch is changed
    window = sender.window()
    window.batches[0] = msgspec.structs.replace(window.batches[0], data=None)
    first = next(new_batches(0, sender.chains[0], window))
    assert (first.first, first.last, first.is_intact) == (1, 3, True)
    window = sender.window()
    # The chain says something else here; what comes after cannot be checked any more.
    window.batches[1] = WireBatch(1, b"x" * 16, window.batches[1].data)
    fresh = list(new_batches(0, sender.chains[0], window))
    assert [new_batch.is_intact for new_batch in fresh] == [True, False, False]


def refused(watermark: int, chain: bytes, window: StreamWindow) -> list[int]:
    """First numbers of the pages that were taken before the refusal."""
    taken: list[int] = []
    with pytest.raises(StreamDivergedError):
        taken.extend(fresh.first for fresh in new_batches(watermark, chain, window))
    return taken


def test_window_of_another_history_is_refused(sender: Correspondent) -> None:
    other = Correspondent([make_letters(3, body=b"other"), *PAGES[1:]])
    assert refused(3, sender.chains[1], other.window()) == []
    assert refused(3, sender.chains[1], other.window(1)) == []
    assert refused(6, sender.chains[3], other.window()) == []
    other = Correspondent(PAGES, epoch=2)
    assert refused(0, sender.chains[0], other.window()) == []
    other = Correspondent([make_letters(4), make_letters(2)])
    assert refused(3, sender.chains[1], other.window()) == []
