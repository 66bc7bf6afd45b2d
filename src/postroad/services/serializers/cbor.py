"""CBOR, as nodes of the original system write it with `cbor-x`."""

from __future__ import annotations

from postroad.services.kinds import Kind
from postroad.services.packet_form import from_wire, to_wire
from postroad.services.packets import Packet

from .cbor_reader import read_cbor
from .cbor_writer import write_cbor
from .serializer import Serializer


class CborSerializer(Serializer):
    """Like MessagePack; slower here, for those whose cluster has it."""

    name = "CBOR"
    chunk_factor = 1
    chunk_bytes_more = 9

    def _encode(self, packet: Packet) -> bytes:
        return write_cbor(to_wire(packet))

    def _decode(self, kind: Kind, data: bytes) -> Packet:
        return from_wire(kind, read_cbor(data), checks_version=self._checks_version)
