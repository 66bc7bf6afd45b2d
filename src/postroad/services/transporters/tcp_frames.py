"""Frames of nodes that speak TCP to each other: a header of six bytes, then a packet.

The first byte of a header is the XOR of the other five; then comes the length of the frame,
header included, and a number for the kind of packet. No I/O happens here.
"""

from __future__ import annotations

import struct

from postroad.core.errors import FrameTooLargeError, MalformedFrameError, RemoteProtocolError
from postroad.services.kinds import Kind

HEADER_BYTES = 6

NUMBERS = {
    Kind.EVENT: 1,
    Kind.REQUEST: 2,
    Kind.RESPONSE: 3,
    Kind.PING: 4,
    Kind.PONG: 5,
    Kind.GOSSIP_REQUEST: 6,
    Kind.GOSSIP_RESPONSE: 7,
    Kind.GOSSIP_HELLO: 8,
    # Far from the others, where the original system may count on. Its nodes never ask for these,
    # and must never get one: their processes end at a kind they do not know.
    Kind.EVENT_ACK: 100,
    Kind.STREAM_PROGRESS: 101,
}
"""The kinds that travel this way; all others are of no use here."""

_HEADER = struct.Struct(">BiB")
_KINDS: list[Kind | None] = [None] * 256
for _kind, _number in NUMBERS.items():
    _KINDS[_number] = _kind


def encode_header(kind: Kind, size: int) -> bytes:
    """The header for a packet of so many bytes; raises KeyError for kinds that do not travel."""
    number = NUMBERS[kind]
    length = size + HEADER_BYTES
    return _HEADER.pack(_folded(length) ^ number, length, number)


class FrameReader:
    """Makes packets of bytes, however those are cut.

    Attributes:
        failure: why nothing is read any more; None while all is well.
    """

    __slots__ = ("_held", "_needed", "_packet_bytes_max", "failure")

    def __init__(self, packet_bytes_max: int) -> None:
        self._packet_bytes_max = packet_bytes_max
        # The beginning of a frame, and how long it must be before it is worth a look.
        self._held = bytearray()
        self._needed = 0
        self.failure: RemoteProtocolError | None = None

    @property
    def is_within_frame(self) -> bool:
        """Whether the last frame is not whole yet."""
        return bool(self._held)

    def receive(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The packets that are whole now; look at `failure` after that."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return []
            data = bytes(self._held)
            self._held.clear()
        return self._read(data) if self.failure is None else []

    def _read(self, data: bytes) -> list[tuple[Kind, bytes]]:
        packets: list[tuple[Kind, bytes]] = []
        start, size = 0, len(data)
        self._needed = HEADER_BYTES
        while size - start >= HEADER_BYTES:
            check, length, number = _HEADER.unpack_from(data, start)
            kind = _KINDS[number]
            if kind is None or length < HEADER_BYTES or _folded(length) ^ number != check:
                self.failure = _fault(check, length, number)
                return packets
            if length - HEADER_BYTES > self._packet_bytes_max:
                self.failure = FrameTooLargeError(
                    f"a frame of {length} bytes; {self._packet_bytes_max} is the most in one"
                )
                return packets
            end = start + length
            if end > size:
                self._needed = length
                break
            packets.append((kind, data[start + HEADER_BYTES : end]))
            start = end
        self._held += data[start:]
        return packets


def _folded(length: int) -> int:
    """The XOR of the four bytes of a number."""
    length ^= length >> 16
    return (length ^ length >> 8) & 0xFF


def _fault(check: int, length: int, number: int) -> MalformedFrameError:
    if _folded(length) ^ number != check:
        return MalformedFrameError(f"a header that is damaged: its check is {check:#04x}")
    if length < HEADER_BYTES:
        return MalformedFrameError(f"a frame of {length} bytes, which is less than its header")
    return MalformedFrameError(f"a packet of the unknown kind {number}")
