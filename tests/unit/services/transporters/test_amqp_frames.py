"""Frames are what others take them for, and packets are found in them however they are cut."""

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, header, heartbeat
from pamqp.base import Frame

from postroad.core.errors import MalformedPayloadError
from postroad.services.transporters.amqp_frames import (
    HEARTBEAT_FRAME,
    PACKET_BYTES_MAX,
    FrameSorter,
    ack,
    closing_words,
    content,
    publish_head,
)
from tests.support.cases import each

CHANNEL = 7


def frames_in(data: bytes) -> list[tuple[int, object]]:
    """As another implementation reads them."""
    found: list[tuple[int, object]] = []
    while data:
        length, channel, frame = pamqp.frame.unmarshal(data)
        found.append((channel, frame))
        data = data[length:]
    return found


def marshal(frame: Frame | body.ContentBody | header.ContentHeader, channel: int) -> bytes:
    return pamqp.frame.marshal(frame, channel)


def delivery(data: bytes, number: int = 1, consumer: str = "c", *, step: int = 1_000) -> bytes:
    """A packet as a server sends it."""
    deliver = commands.Basic.Deliver(consumer, number, False, "exchange", "key")
    properties = commands.Basic.Properties(message_id="some", delivery_mode=1)
    parts = [
        marshal(deliver, CHANNEL),
        marshal(header.ContentHeader(0, len(data), properties), CHANNEL),
        *(
            marshal(body.ContentBody(data[start : start + step]), CHANNEL)
            for start in range(0, len(data), step)
        ),
    ]
    return b"".join(parts)


class Sorted:
    """What a sorter found."""

    def __init__(self, channel: int = CHANNEL) -> None:
        self.packets: list[tuple[bytes, int, bytes]] = []
        self.passed: list[bytes] = []
        self.sorter = FrameSorter(
            lambda consumer, number, data: self.packets.append((consumer, number, data)),
            self.passed.append,
        )
        self.sorter.channel = channel


def test_frames_that_are_written_are_read_by_pamqp() -> None:
    data = publish_head(CHANNEL, "MOL.INFO", "") + content(CHANNEL, b"hello", 4_096)
    (_, publish), (_, head), (channel, part) = frames_in(data)
    assert isinstance(publish, commands.Basic.Publish)
    assert (publish.exchange, publish.routing_key) == ("MOL.INFO", "")
    assert not publish.mandatory
    assert not publish.immediate
    assert isinstance(head, header.ContentHeader)
    assert head.body_size == 5
    assert isinstance(part, body.ContentBody)
    assert (channel, part.value) == (CHANNEL, b"hello")
    ((_, publish),) = frames_in(publish_head(CHANNEL, "", "MOL.REQ.größe"))
    assert isinstance(publish, commands.Basic.Publish)
    assert publish.routing_key == "MOL.REQ.größe"
    ((channel, frame),) = frames_in(ack(CHANNEL, 1 << 40))
    assert isinstance(frame, commands.Basic.Ack)
    assert (channel, frame.delivery_tag, frame.multiple) == (CHANNEL, 1 << 40, False)
    assert heartbeat.Heartbeat().marshal() == HEARTBEAT_FRAME
    for size in (0, 1, 91, 92, 93, 184, 185, 1_000):
        data = bytes(index % 251 for index in range(size))
        (_, head), *parts = frames_in(content(CHANNEL, data, 100))
        assert isinstance(head, header.ContentHeader), size
        assert head.body_size == size, size
        values = [part.value for _, part in parts if isinstance(part, body.ContentBody)]
        assert b"".join(values) == data, size
        assert len(values) == len(parts) == -(-size // 92), size


def test_what_a_server_says_at_the_end() -> None:
    close = commands.Connection.Close(530, "NOT_ALLOWED - größe", 10, 40)
    assert closing_words(marshal(close, 0)) == "NOT_ALLOWED - größe"
    for other in (HEARTBEAT_FRAME, ack(CHANNEL, 1), b"\x01\0\0\0\0\0\0\xce"):
        assert closing_words(other) == ""
    for length in range(20):
        assert "NOT_ALLOWED".startswith(closing_words(marshal(close, 0)[:length]))


def test_packets_are_found_however_they_are_cut() -> None:
    other = marshal(commands.Queue.DeclareOk("queue", 0, 0), CHANNEL)
    elsewhere = marshal(commands.Basic.Deliver("c", 9, False, "", ""), CHANNEL + 1)
    data = (
        delivery(b"first", 1)
        + other
        + delivery(b"", 2, "consumer-2")
        + elsewhere
        + HEARTBEAT_FRAME
        + delivery(b"long" * 30, 3, step=50)
    )
    for size in range(1, len(data) + 1):
        found = Sorted()
        for start in range(0, len(data), size):
            found.sorter.feed(data[start : start + size])
        assert found.packets == [
            (b"c", 1, b"first"),
            (b"consumer-2", 2, b""),
            (b"c", 3, b"long" * 30),
        ]
        assert found.passed == [other, elsewhere, HEARTBEAT_FRAME]


def test_frames_of_no_packet_are_passed_on() -> None:
    whole = delivery(b"x" * 2_000, 5)
    found = Sorted()
    cut = len(whole) - 1_008
    found.sorter.feed(whole[:cut] + HEARTBEAT_FRAME + whole[cut:])
    assert found.packets == [(b"c", 5, b"x" * 2_000)]
    assert found.passed == [HEARTBEAT_FRAME]
    found = Sorted(channel=0)
    found.sorter.feed(delivery(b"early"))
    assert found.packets == []
    assert b"".join(found.passed) == delivery(b"early")
    found = Sorted()
    alone = content(CHANNEL, b"returned", 4_096)
    found.sorter.feed(alone)
    assert b"".join(found.passed) == alone


@each(
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\xff" * 20,
    HEARTBEAT_FRAME[:-1] + b"\0",
    marshal(commands.Basic.Deliver("c", 1, False, "", ""), CHANNEL) * 2,
    marshal(commands.Basic.Deliver("c", 1, False, "", ""), CHANNEL)
    + marshal(body.ContentBody(b"no header"), CHANNEL),
    delivery(b"more")[:-12] + marshal(body.ContentBody(b"than it says"), CHANNEL),
    b"\x01\0\x07\0\0\0\x04\0\x3c\0\x3c\xce",
    b"\x01\0\x07\0\0\0\x06\0\x3c\0\x3c\x09c\xce",
    marshal(commands.Basic.Deliver("c", 1, False, "", ""), CHANNEL)
    + b"\x02\0\x07\0\0\0\x02\0\x3c\xce",
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedPayloadError):
        Sorted().sorter.feed(data)


def test_frames_and_packets_that_are_too_large_are_refused_before_they_are_there() -> None:
    deliver = commands.Basic.Deliver("c", 1, False, "exchange", "key")
    announced = header.ContentHeader(0, PACKET_BYTES_MAX + 1, commands.Basic.Properties())
    with pytest.raises(MalformedPayloadError, match=str(PACKET_BYTES_MAX + 1)):
        Sorted().sorter.feed(marshal(deliver, CHANNEL) + marshal(announced, CHANNEL))
    found = Sorted()
    found.sorter.frame_bytes_max = 4_096
    with pytest.raises(MalformedPayloadError, match="4089"):
        found.sorter.feed(b"\x03\0\x07\0\0\x0f\xf9" + b"x")


@given(
    packets=st.lists(st.tuples(st.binary(max_size=300), st.integers(0, (1 << 63) - 1))),
    cuts=st.lists(st.integers(1, 200), min_size=1),
)
def test_what_is_sent_is_what_comes(packets: list[tuple[bytes, int]], cuts: list[int]) -> None:
    data = b"".join(delivery(packet, number, step=100) for packet, number in packets)
    found = Sorted()
    turn = 0
    while data:
        size = cuts[turn % len(cuts)]
        found.sorter.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert found.packets == [(b"c", number, packet) for packet, number in packets]


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_passes(data: bytes) -> None:
    found = Sorted()
    try:
        found.sorter.feed(data)
    except MalformedPayloadError:
        return
    assert b"".join(found.passed) == data[: sum(map(len, found.passed))]
