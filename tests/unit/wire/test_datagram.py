"""Unicast datagrams."""

import struct

import msgspec
import pytest

from postroad.core.address import Address
from postroad.core.errors import (
    FrameTooLarge,
    HandshakeRefused,
    LocalProtocolError,
    MalformedFrame,
)
from postroad.core.limits import DATAGRAM_BYTES_MAX
from postroad.wire.datagram import Datagram, decode_datagram, encode_datagram

PREAMBLE = b"\xeb\x6e\xec\x8a"
DATAGRAM = Datagram("alpha", "127.0.0.1", 26701, "echo", b"hello")
BODY = b"\x95\xa5alpha\xa9127.0.0.1\xcd\x68\x4d\xa4echo\xc4\x05hello"


def framed(body: bytes) -> bytes:
    return PREAMBLE + struct.pack(">i", len(body)) + body


def test_layout() -> None:
    assert encode_datagram(PREAMBLE, DATAGRAM) == framed(BODY)
    assert decode_datagram(PREAMBLE, framed(BODY)) == DATAGRAM
    assert DATAGRAM.sender == Address("127.0.0.1", 26701)


def test_the_largest_datagram() -> None:
    overhead = len(encode_datagram(PREAMBLE, Datagram("a", "h", 1, "s", bytes(60_000)))) - 60_000
    largest = Datagram("a", "h", 1, "s", bytes(DATAGRAM_BYTES_MAX - overhead))
    data = encode_datagram(PREAMBLE, largest)
    assert len(data) == DATAGRAM_BYTES_MAX
    assert decode_datagram(PREAMBLE, data) == largest

    larger = msgspec.structs.replace(largest, payload=largest.payload + b"!")
    with pytest.raises(LocalProtocolError, match="65508 bytes exceeds 65507"):
        encode_datagram(PREAMBLE, larger)


def test_a_larger_one_is_refused() -> None:
    with pytest.raises(FrameTooLarge):
        decode_datagram(PREAMBLE, PREAMBLE + bytes(DATAGRAM_BYTES_MAX))


@pytest.mark.parametrize("data", [b"", b"\xeb\x6e\xec", b"\xeb\x6e\xec\x8b", b"random bytes"])
def test_another_cluster(data: bytes) -> None:
    with pytest.raises(HandshakeRefused, match="another cluster"):
        decode_datagram(PREAMBLE, data)


@pytest.mark.parametrize("size", range(4, 8))
def test_a_cut_header(size: int) -> None:
    with pytest.raises(MalformedFrame, match="shorter than its header"):
        decode_datagram(PREAMBLE, framed(BODY)[:size])


@pytest.mark.parametrize("announced", [-1, 0, len(BODY) - 1, len(BODY) + 1, 2**31 - 1, -(2**31)])
def test_a_wrong_length(announced: int) -> None:
    with pytest.raises(MalformedFrame, match=f"announces {announced} bytes"):
        decode_datagram(PREAMBLE, PREAMBLE + struct.pack(">i", announced) + BODY)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        BODY[:-1],
        BODY + b"\x00",
        b"\x94" + BODY[1:-7],
        msgspec.msgpack.encode({"name": "alpha"}),
        msgspec.msgpack.encode(["alpha", "h", "26701", "echo", b""]),
        msgspec.msgpack.encode(["alpha", "h", 1, "echo", "text"]),
        BODY.replace(b"echo", b"ech\xff"),
        b"\xc1",
    ],
)
def test_a_body_of_another_shape(body: bytes) -> None:
    with pytest.raises(MalformedFrame, match="datagram body"):
        decode_datagram(PREAMBLE, framed(body))


def test_a_deeply_nested_body() -> None:
    """Fields that later nodes may add are skipped, but not at the price of the stack."""
    nested = b"\x96" + BODY[1:] + b"\x91" * 50_000 + b"\xc0"
    with pytest.raises(MalformedFrame):
        decode_datagram(PREAMBLE, framed(nested))


@pytest.mark.parametrize("port", [-1, 65_536, 2**63])
def test_a_port_outside_its_range(port: int) -> None:
    body = msgspec.msgpack.encode(["alpha", "h", port, "echo", b""])
    with pytest.raises(MalformedFrame, match="port"):
        decode_datagram(PREAMBLE, framed(body))


def test_later_nodes_may_add_fields() -> None:
    body = b"\x96" + BODY[1:] + b"\x01"
    assert decode_datagram(PREAMBLE, framed(body)) == DATAGRAM
