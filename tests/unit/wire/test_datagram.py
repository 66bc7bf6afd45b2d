"""Unicast datagrams."""

import struct

import msgspec
import pytest

from postroad.core.errors import (
    FrameTooLargeError,
    HandshakeRejectedError,
    LocalProtocolError,
    MalformedFrameError,
)
from postroad.core.limits import DATAGRAM_BYTES_MAX
from postroad.core.names import Address
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

    with pytest.raises(FrameTooLargeError):
        decode_datagram(PREAMBLE, PREAMBLE + bytes(DATAGRAM_BYTES_MAX))


def test_a_datagram_with_a_bad_header_is_refused(subtests: pytest.Subtests) -> None:
    for data in [b"", b"\xeb\x6e\xec", b"\xeb\x6e\xec\x8b", b"random bytes"]:
        with (
            subtests.test(data=data),
            pytest.raises(HandshakeRejectedError, match="another cluster"),
        ):
            decode_datagram(PREAMBLE, data)

    for size in range(4, 8):
        refusal = pytest.raises(MalformedFrameError, match="shorter than its header")
        with subtests.test(size=size), refusal:
            decode_datagram(PREAMBLE, framed(BODY)[:size])

    for announced in [-1, 0, len(BODY) - 1, len(BODY) + 1, 2**31 - 1, -(2**31)]:
        refusal = pytest.raises(MalformedFrameError, match=f"announces {announced} bytes")
        with subtests.test(announced=announced), refusal:
            decode_datagram(PREAMBLE, PREAMBLE + struct.pack(">i", announced) + BODY)


def test_a_datagram_with_a_bad_body_is_refused(subtests: pytest.Subtests) -> None:
    for body in [
        b"",
        BODY[:-1],
        BODY + b"\x00",
        b"\x94" + BODY[1:-7],
        msgspec.msgpack.encode({"name": "alpha"}),
        msgspec.msgpack.encode(["alpha", "h", "26701", "echo", b""]),
        msgspec.msgpack.encode(["alpha", "h", 1, "echo", "text"]),
        BODY.replace(b"echo", b"ech\xff"),
        b"\xc0",
    ]:
        with subtests.test(body=body), pytest.raises(MalformedFrameError, match="datagram body"):
            decode_datagram(PREAMBLE, framed(body))

    # Fields that later nodes may add are skipped, but not at the price of the stack.
    nested = b"\x96" + BODY[1:] + b"\x91" * 50_000 + b"\xc0"
    with pytest.raises(MalformedFrameError):
        decode_datagram(PREAMBLE, framed(nested))

    for port in [-1, 65_536, 2**63]:
        with subtests.test(port=port):
            body = msgspec.msgpack.encode(["alpha", "h", port, "echo", b""])
            with pytest.raises(MalformedFrameError, match="port"):
                decode_datagram(PREAMBLE, framed(body))


def test_later_nodes_may_add_fields() -> None:
    body = b"\x96" + BODY[1:] + b"\x01"
    assert decode_datagram(PREAMBLE, framed(body)) == DATAGRAM


def test_sealed_datagram_without_a_local_secret_is_rejected() -> None:
    with pytest.raises(HandshakeRejectedError, match="this node has none"):
        decode_datagram(PREAMBLE, framed(b"\xc1\x01" + bytes(80)))
