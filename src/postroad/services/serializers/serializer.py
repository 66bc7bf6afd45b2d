"""What all serializers have in common: limits, the check of the version, and their errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import msgspec

from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.core.limits import MIB
from postroad.services.errors import UnsendablePacket
from postroad.services.kinds import Kind
from postroad.services.packet_form import check_packet
from postroad.services.packets import Packet

PACKET_BYTES_MAX = 64 * MIB
"""Larger packets are not read; transporters have smaller limits of their own."""

# What reading bytes of somebody else may raise in the libraries below.
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError, OverflowError)


class Serializer(ABC):
    """Packets to bytes and back. It keeps nothing of either."""

    name: ClassVar[str]
    """As in the options of brokers of the original system."""
    chunk_factor: ClassVar[int]
    """The most bytes on the wire for each byte of a chunk of a stream."""
    chunk_bytes_more: ClassVar[int]
    """The most bytes on the wire besides, for each chunk."""

    def __init__(
        self, *, checks_version: bool = True, packet_bytes_max: int = PACKET_BYTES_MAX
    ) -> None:
        """Without `checks_version`, packets of any version are read as if they were of ours."""
        if packet_bytes_max < 1:
            raise ConfigError(f"packet_bytes_max={packet_bytes_max} must be more than 0")
        self._checks_version = checks_version
        self._packet_bytes_max = packet_bytes_max

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def serialize(self, packet: Packet) -> bytes:
        """The bytes of a packet; raises UnsendablePacket if something in it has none."""
        try:
            return self._encode(packet)
        except Exception as error:
            # Encoding may run code of the values themselves.
            raise UnsendablePacket(f"a {packet.KIND} cannot be sent: {error}") from None

    def deserialize(self, kind: Kind, data: bytes | bytearray | memoryview) -> Packet:
        """The packet of a kind in some bytes; raises MalformedPayloadError for anything else."""
        if len(data) > self._packet_bytes_max:
            raise MalformedPayloadError(f"a {kind} of {len(data)} bytes")
        try:
            packet = self._decode(kind, bytes(data))
        except MalformedPayloadError:
            raise
        except _UNREADABLE as error:
            raise MalformedPayloadError(f"no {kind}: {error}") from None
        check_packet(packet, checks_version=self._checks_version)
        return packet

    @abstractmethod
    def _encode(self, packet: Packet) -> bytes:
        """The bytes of a packet; may raise anything."""

    @abstractmethod
    def _decode(self, kind: Kind, data: bytes) -> Packet:
        """The packet in some bytes, of any version."""
