"""Frames, byte by byte."""

import struct
from itertools import product

import pytest

from postroad.core.errors import FrameTooLargeError, MalformedFrameError
from postroad.services.kinds import Kind
from postroad.services.transporters.tcp_frames import (
    HEADER_BYTES,
    NUMBERS,
    FrameReader,
    encode_header,
)
from tests.support.cases import each, naming

LIMIT = 1_000


def frame(kind: Kind, data: bytes) -> bytes:
    return encode_header(kind, len(data)) + data


def raw_header(length: int, number: int, *, damage: int = 0) -> bytes:
    rest = struct.pack(">iB", length, number)
    check = damage
    for byte in rest:
        check ^= byte
    return bytes([check]) + rest


def test_header_is_that_of_moleculer() -> None:
    assert encode_header(Kind.REQUEST, 0x01_02_03).hex(" ") == "08 00 01 02 09 02"
    assert encode_header(Kind.GOSSIP_HELLO, 0).hex(" ") == "0e 00 00 00 06 08"
    for size, kind in product([0, 1, 250, 0xFFFF, 0x12_34_56, 0x7FFF_FFF0], NUMBERS):
        header = encode_header(kind, size)
        assert header == raw_header(size + HEADER_BYTES, NUMBERS[kind]), (size, kind)
    for kind in (Kind.INFO, Kind.DISCOVER, Kind.DISCONNECT, Kind.HEARTBEAT):
        with naming(kind), pytest.raises(KeyError):
            encode_header(kind, 0)


def test_reader_finds_frames_however_they_are_cut() -> None:
    packets = [(kind, bytes([number]) * number) for number, kind in enumerate(NUMBERS)]
    reader = FrameReader(LIMIT)
    assert reader.receive(b"".join(frame(*packet) for packet in packets)) == packets
    assert not reader.is_within_frame
    assert reader.failure is None
    reader = FrameReader(LIMIT)
    came = []
    for byte in frame(Kind.EVENT, b"one") + frame(Kind.PING, b"") + frame(Kind.PONG, b"two"):
        came += reader.receive(bytes([byte]))
    assert came == [(Kind.EVENT, b"one"), (Kind.PING, b""), (Kind.PONG, b"two")]
    assert not reader.is_within_frame
    reader = FrameReader(LIMIT)
    data = frame(Kind.EVENT, b"one")
    for end in (1, HEADER_BYTES, len(data) - 1):
        reader = FrameReader(LIMIT)
        assert reader.receive(data[:end]) == []
        assert reader.is_within_frame
        assert reader.receive(data[end:]) == [(Kind.EVENT, b"one")]
        assert not reader.is_within_frame
    reader = FrameReader(LIMIT)
    assert reader.receive(frame(Kind.EVENT, bytes(LIMIT))) == [(Kind.EVENT, bytes(LIMIT))]


@each(
    (raw_header(6, 2, damage=1), MalformedFrameError, "damaged"),
    (raw_header(5, 2), MalformedFrameError, "5 bytes"),
    (raw_header(0, 2), MalformedFrameError, "0 bytes"),
    (raw_header(-1, 2), MalformedFrameError, "-1 bytes"),
    (raw_header(-(2**31), 2), MalformedFrameError, "bytes"),
    (raw_header(6, 0), MalformedFrameError, "kind 0"),
    (raw_header(6, 9), MalformedFrameError, "kind 9"),
    (raw_header(6, 255), MalformedFrameError, "kind 255"),
    (raw_header(LIMIT + HEADER_BYTES + 1, 2), FrameTooLargeError, str(LIMIT)),
    (raw_header(2**31 - 1, 2), FrameTooLargeError, str(LIMIT)),
    (b"GET / HTTP/1.1\r\n", MalformedFrameError, ""),
)
def test_what_is_no_frame(header: bytes, error: type[Exception], text: str) -> None:
    reader = FrameReader(LIMIT)
    good = frame(Kind.EVENT, b"good")
    assert reader.receive(good + header) == [(Kind.EVENT, b"good")]
    assert type(reader.failure) is error
    assert text in str(reader.failure)
    assert not reader.is_within_frame
    # Nothing comes after that, whatever it is.
    assert reader.receive(good) == []
