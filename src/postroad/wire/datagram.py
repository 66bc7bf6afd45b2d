"""Unicast datagrams: preamble, length, then sender, subject and payload as MessagePack.

i32 preamble, i32 length of the rest, [sender name, host, port, subject, payload]
"""

from __future__ import annotations

import struct

import msgspec

from postroad.core.address import Address
from postroad.core.errors import FrameTooLarge, HandshakeRefused, LocalProtocolError, MalformedFrame
from postroad.core.limits import DATAGRAM_BYTES_MAX

_LENGTH = struct.Struct(">i")
_PREAMBLE_BYTES = 4
_HEADER_BYTES = _PREAMBLE_BYTES + _LENGTH.size


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
    """The bytes to send; LocalProtocolError if no datagram can carry them."""
    body = _encoder.encode(datagram)
    size = _HEADER_BYTES + len(body)
    if size > DATAGRAM_BYTES_MAX:
        raise LocalProtocolError(f"a datagram of {size} bytes exceeds {DATAGRAM_BYTES_MAX}")
    return preamble + _LENGTH.pack(len(body)) + body


def decode_datagram(preamble: bytes, data: bytes) -> Datagram:
    """Read what a peer sent; raises RemoteProtocolError for anything else."""
    if len(data) > DATAGRAM_BYTES_MAX:
        raise FrameTooLarge(f"a datagram of {len(data)} bytes exceeds {DATAGRAM_BYTES_MAX}")
    if not data.startswith(preamble):
        raise HandshakeRefused(f"datagram of another cluster, preamble {data[:4].hex(' ')}")
    if len(data) < _HEADER_BYTES:
        raise MalformedFrame(f"a datagram of {len(data)} bytes is shorter than its header")
    (length,) = _LENGTH.unpack_from(data, _PREAMBLE_BYTES)
    if length != len(data) - _HEADER_BYTES:
        raise MalformedFrame(f"datagram announces {length} bytes, has {len(data) - _HEADER_BYTES}")
    try:
        datagram = _decoder.decode(memoryview(data)[_HEADER_BYTES:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(f"datagram body: {error}") from None
    if not 0 <= datagram.port <= 65535:
        raise MalformedFrame(f"datagram port {datagram.port} is not 0 to 65535")
    return datagram
