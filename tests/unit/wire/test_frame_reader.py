"""Pieces to frames, with memory that follows what has arrived."""

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from postroad.core.errors import FrameTooLargeError, MalformedFrameError, RemoteProtocolError
from postroad.core.names import Address
from postroad.wire.codecs import Codec, DocumentedCodec, Version3Codec, ZeebeCodec
from postroad.wire.frame_reader import BufferCache, FrameReader
from postroad.wire.frames import CancelFrame, Frame, ReplyFrame, RequestFrame
from tests.support.wire.pairs import byte_by_byte, cut_at, version3_frame

KIB = 1024
MIB = 1024 * KIB
HERE = Address("127.0.0.1", 1)

CodecMaker = Callable[[], Codec]

CODECS: dict[str, CodecMaker] = {
    "documented 1": lambda: DocumentedCodec(1, HERE, HERE.host, 4 * MIB),
    "documented 2": lambda: DocumentedCodec(2, HERE, HERE.host, 4 * MIB),
    "zeebe 1": lambda: ZeebeCodec(1, HERE, HERE.host, 4 * MIB),
    "zeebe 2": lambda: ZeebeCodec(2, HERE, HERE.host, 4 * MIB),
    "version 3": lambda: Version3Codec(4 * MIB),
}


@pytest.fixture(params=CODECS)
def make_codec(request: pytest.FixtureRequest) -> CodecMaker:
    return CODECS[request.param]


def encode(codec: Codec, frames: list[Frame]) -> bytes:
    out: list[bytes] = []
    for frame in frames:
        codec.encode(out, frame)
    return b"".join(out)


def reader_of(codec: Codec) -> FrameReader:
    return FrameReader(codec, BufferCache())


def version3_reader() -> FrameReader:
    return reader_of(Version3Codec(4 * MIB))


def request(id: int, size: int) -> RequestFrame:
    return RequestFrame(id, f"subject {id}", bytes([id % 256]) * size)


SMALL: list[Frame] = [request(1, 0), ReplyFrame(1, 0, b"x"), request(2, 100), ReplyFrame(2, 3, b"")]
LARGE: list[Frame] = [
    request(1, 300 * KIB),
    request(2, 10),
    ReplyFrame(3, 0, bytes(MIB)),
    request(4, 0),
]


def test_byte_by_byte(make_codec: CodecMaker) -> None:
    reader = reader_of(make_codec())
    read = [reader.feed(piece) for piece in byte_by_byte(encode(make_codec(), SMALL))]
    assert [frame for frames in read for frame in frames] == SMALL
    assert max(map(len, read)) == 1
    assert not reader.is_mid_frame


@pytest.mark.parametrize("piece_bytes", [64 * KIB, 100_000, 290 * KIB, 700 * KIB])
def test_large_frames_in_pieces(make_codec: CodecMaker, piece_bytes: int) -> None:
    data = encode(make_codec(), LARGE)
    reader = reader_of(make_codec())
    read: list[Frame] = []
    for piece in cut_at(data, range(piece_bytes, len(data), piece_bytes)):
        read += reader.feed(piece)
    assert read == LARGE
    assert not reader.is_mid_frame
    for frame in read:
        assert isinstance(frame, RequestFrame | ReplyFrame)
        assert type(frame.payload) is bytes


def test_control_frames_behind_a_large_one() -> None:
    data = encode(Version3Codec(4 * MIB), [request(1, 300 * KIB), CancelFrame(1)])
    reader = version3_reader()
    assert reader.feed(data[: 270 * KIB]) == []
    assert reader.feed(data[270 * KIB :]) == [request(1, 300 * KIB), CancelFrame(1)]

    reader = version3_reader()
    frame = version3_frame(2, b"payload", id=1)
    assert not reader.is_mid_frame
    reader.feed(frame[:1])
    assert reader.is_mid_frame
    reader.feed(frame[1:])
    assert not reader.is_mid_frame
    reader.feed(frame[:3])
    assert reader.is_mid_frame


class CountingCodec(Version3Codec):
    calls = 0

    def decode(self, data: bytes | memoryview, frames: list[Frame]) -> int:
        self.calls += 1
        return super().decode(data, frames)


def test_a_large_frame_is_parsed_when_it_is_whole_and_not_before() -> None:
    data = encode(Version3Codec(4 * MIB), [request(1, 4 * MIB - 100)])
    codec = CountingCodec(4 * MIB)
    reader = reader_of(codec)
    for piece in cut_at(data, range(1_000, len(data), 1_000)):
        reader.feed(piece)
    assert codec.calls == 2


def pour(reader: FrameReader, data: bytes, piece_bytes: int) -> list[Frame]:
    """Feed small frames, and fill the room of large ones, as a socket would."""
    frames: list[Frame] = []
    while data:
        room = reader.receive_buffer()
        size = piece_bytes if room is None else min(piece_bytes, len(room))
        piece, data = data[:size], data[size:]
        if room is None:
            frames += reader.feed(piece)
        else:
            room[: len(piece)] = piece
            frames += reader.buffer_filled(len(piece))
    return frames


@pytest.mark.parametrize("piece_bytes", [1_000, 64 * KIB, 10 * MIB])
def test_large_frames_through_their_room(make_codec: CodecMaker, piece_bytes: int) -> None:
    reader = reader_of(make_codec())
    frames = pour(reader, encode(make_codec(), LARGE), piece_bytes)
    assert frames == LARGE
    assert not reader.is_mid_frame
    assert {
        type(frame.payload) for frame in frames if isinstance(frame, RequestFrame | ReplyFrame)
    } == {bytes}


def test_only_large_frames_have_room_which_ends_with_the_frame() -> None:
    reader = version3_reader()
    assert reader.receive_buffer() is None
    reader.feed(version3_frame(2, bytes(1_000))[:500])
    assert reader.is_mid_frame
    assert reader.receive_buffer() is None

    data = version3_frame(2, bytes(MIB))
    reader = version3_reader()
    reader.feed(data[:100_000])
    filled = 100_000
    while (room := reader.receive_buffer()) is not None:
        assert 0 < len(room) <= len(data) - filled
        reader.buffer_filled(len(room))
        filled += len(room)
    assert filled == len(data)


def test_room_and_pieces_may_alternate() -> None:
    reply = ReplyFrame(1, 0, bytes(range(256)) * 4 * KIB)
    data = encode(Version3Codec(4 * MIB), [reply])
    reader = version3_reader()
    frames: list[Frame] = reader.feed(data[:100_000])
    position = 100_000
    while position < len(data):
        frames += reader.feed(data[position : position + 50_000])
        position += 50_000
        room = reader.receive_buffer()
        if room is not None:
            size = min(len(room), 50_000)
            assert size > 0
            room[:size] = data[position : position + size]
            frames += reader.buffer_filled(size)
            position += size
    assert frames == [reply]


def test_a_buffer_serves_one_large_frame_after_the_other_but_not_two_at_once() -> None:
    spare = BufferCache()
    payloads = [b"a" * 300 * KIB, b"b" * 200 * KIB, b"c" * MIB]
    readers = [FrameReader(Version3Codec(4 * MIB), spare) for _ in payloads]
    frames = [
        frame
        for reader, payload in zip(readers, payloads, strict=True)
        for frame in pour(reader, version3_frame(2, payload), 64 * KIB)
    ]
    assert frames == [ReplyFrame(0, 0, payload) for payload in payloads]

    spare = BufferCache()
    first, second = (FrameReader(Version3Codec(4 * MIB), spare) for _ in range(2))
    data = [version3_frame(2, byte * 300 * KIB) for byte in (b"a", b"b")]
    events: list[Frame] = []
    for position in range(0, len(data[0]), 50_000):
        piece = slice(position, position + 50_000)
        events += first.feed(data[0][piece]) + second.feed(data[1][piece])
    assert events == [ReplyFrame(0, 0, b"a" * 300 * KIB), ReplyFrame(0, 0, b"b" * 300 * KIB)]

    spare = BufferCache()
    small, large = bytearray(10), bytearray(20)
    for buffer in (small, large, small):
        spare.release(buffer)
    assert spare.acquire() is large
    assert spare.acquire() is not large


class BulkyCancelCodec(Version3Codec):
    """Knows one frame: a cancel of 200,000 bytes."""

    def decode(self, data: bytes | memoryview, frames: list[Frame]) -> int:
        self.bytes_needed = 200_000
        if len(data) < self.bytes_needed:
            return 0
        frames.append(CancelFrame(1))
        return self.bytes_needed


def test_a_large_frame_need_not_carry_a_payload() -> None:
    assert pour(reader_of(BulkyCancelCodec(4 * MIB)), bytes(200_000), 64 * KIB) == [CancelFrame(1)]


def test_frames_before_a_failure_count(make_codec: CodecMaker) -> None:
    reader = reader_of(make_codec())
    assert reader.feed(encode(make_codec(), SMALL) + b"\xff" * 20) == SMALL
    assert isinstance(reader.failure, RemoteProtocolError)

    reader = reader_of(make_codec())
    data = encode(make_codec(), LARGE[:1]) + b"\xff" * 20
    assert reader.feed(data[: 290 * KIB]) == []
    assert reader.feed(data[290 * KIB :]) == LARGE[:1]
    assert isinstance(reader.failure, RemoteProtocolError)


@pytest.mark.parametrize("frames", [SMALL, LARGE], ids=["small", "large"])
def test_after_a_failure_nothing_more_is_read(frames: list[Frame]) -> None:
    data = encode(Version3Codec(4 * MIB), frames)
    reader = version3_reader()
    reader.feed(data[:-1])
    reader.feed(data[-1:] + version3_frame(99))
    failure = reader.failure
    assert isinstance(failure, MalformedFrameError)

    assert reader.feed(data) == []
    assert reader.failure is failure


ANNOUNCED = {
    "documented 1": b"\x00\x04\x7f\x00\x00\x01" + bytes(4) + struct.pack(">Bqi", 1, 1, 2**31 - 1),
    "documented 2": b"\x00\x01a" + bytes(4) + struct.pack(">Bqi", 1, 1, 2**31 - 1),
    "zeebe 1": b"\x04\x7f\x00\x00\x01" + bytes(4) + b"\x01\x01\xff\xff\xff\xff\x07",
    "zeebe 2": b"\x00\x01a" + bytes(4) + b"\x01\x01\xff\xff\xff\xff\x07",
    "version 3": struct.pack(">IBBHIQ", 2**31 - 1, 1, 0, 4, 0, 1),
}


def peak_bytes(reader: FrameReader, data: bytes) -> int:
    tracemalloc.start()
    try:
        for piece in byte_by_byte(data):
            reader.feed(piece)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_announced_gibibytes_take_no_memory(subtests: pytest.Subtests) -> None:
    for name in CODECS:
        with subtests.test(name=name):
            reader = reader_of(CODECS[name]())
            assert peak_bytes(reader, ANNOUNCED[name]) < 64 * KIB
            assert isinstance(reader.failure, FrameTooLargeError)

    reader = reader_of(Version3Codec(2**31 - 1))
    header = struct.pack(">IBBHIQ", 2**31 - 1, 1, 0, 4, 0, 1)
    assert peak_bytes(reader, header + b"some") < 64 * KIB
    assert reader.failure is None
    assert reader.is_mid_frame
