"""Unicast datagrams: preamble, length, then sender, subject and payload as MessagePack (5).

i32 preamble, i32 length of the rest, [sender name, host, port, subject, payload]

In a cluster with a secret the rest is sealed; see `datagram_seal`.
"""

from __future__ import annotations

import struct

import msgspec

from postroad.core.errors import (
    FrameTooLargeError,
    HandshakeRejectedError,
    LocalProtocolError,
    MalformedFrameError,
)
from postroad.core.limits import DATAGRAM_BYTES_MAX
from postroad.core.names import Address
from postroad.wire.datagram_seal import MARK

_LENGTH = struct.Struct(">i")
_PREAMBLE_BYTES = 4
_HEADER_BYTES = _PREAMBLE_BYTES + _LENGTH.size
_MARK = bytes([MARK])


class Datagram(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unicast message."""

    name: str
    host: str
    port: int
    subject: str
    payload: bytes

    @property
    def sender(self) -> Address:
        """The address the sender advertises."""
        return Address(self.host, self.port)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Datagram)


def encode_datagram(preamble: bytes, datagram: Datagram) -> bytes:
    """Return the bytes to send; raise LocalProtocolError if they exceed a datagram."""
    return frame_datagram(preamble, encode_body(datagram))


def decode_datagram(preamble: bytes, data: bytes) -> Datagram:
    """Decode a received datagram; raise RemoteProtocolError if it is not valid."""
    body = unframe_datagram(preamble, data)
    if body[:1] == _MARK:
        raise HandshakeRejectedError(
            "the datagram is sealed with a cluster secret and this node has none: set node.secret"
        )
    return decode_body(body)


def encode_body(datagram: Datagram) -> bytes:
    """Encode sender, subject and payload."""
    return _encoder.encode(datagram)


def decode_body(body: bytes) -> Datagram:
    """Decode sender, subject and payload."""
    try:
        datagram = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrameError(f"cannot decode the datagram body: {error}") from None
    if not 0 <= datagram.port <= 65535:
        raise MalformedFrameError(f"datagram port {datagram.port} is not 0 to 65535")
    return datagram


def frame_datagram(preamble: bytes, body: bytes) -> bytes:
    """Add the header to a plain or sealed body."""
    check_body_size(len(body))
    return preamble + _LENGTH.pack(len(body)) + body


def check_body_size(body_bytes: int) -> None:
    """Raise LocalProtocolError if the body exceeds a datagram."""
    size = _HEADER_BYTES + body_bytes
    if size > DATAGRAM_BYTES_MAX:
        raise LocalProtocolError(f"a datagram of {size} bytes exceeds {DATAGRAM_BYTES_MAX}")


def unframe_datagram(preamble: bytes, data: bytes) -> bytes:
    """Check the header and return the body; raise RemoteProtocolError if it is not valid."""
    if len(data) > DATAGRAM_BYTES_MAX:
        raise FrameTooLargeError(f"a datagram of {len(data)} bytes exceeds {DATAGRAM_BYTES_MAX}")
    if not data.startswith(preamble):
        raise HandshakeRejectedError(f"datagram of another cluster, preamble {data[:4].hex(' ')}")
    if len(data) < _HEADER_BYTES:
        raise MalformedFrameError(f"a datagram of {len(data)} bytes is shorter than its header")
    (length,) = _LENGTH.unpack_from(data, _PREAMBLE_BYTES)
    if length != len(data) - _HEADER_BYTES:
        raise MalformedFrameError(
            f"datagram announces {length} bytes, has {len(data) - _HEADER_BYTES}"
        )
    return data[_HEADER_BYTES:]
