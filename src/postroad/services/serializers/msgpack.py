"""MessagePack, as nodes of the original system write it with `msgpack5`."""

from __future__ import annotations

import msgspec

from postroad.services.kinds import Kind
from postroad.services.packet_form import read_leniently
from postroad.services.packets import PACKETS, Packet

from .depth import DEPTH_MAX, check_depth
from .serializer import Serializer

# The first bytes of maps and arrays. Where few of them occur, as anything, nothing is deep.
_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
_COUNTED_BYTES_MAX = 2_048

_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(it) for kind, it in PACKETS.items()}


class MsgPackSerializer(Serializer):
    """Small, quick, and with bytes and times of its own."""

    name = "MsgPack"
    chunk_factor = 1
    chunk_bytes_more = 5

    def _encode(self, packet: Packet) -> bytes:
        return _encoder.encode(packet)

    def _decode(self, kind: Kind, data: bytes) -> Packet:
        try:
            packet = _decoders[kind].decode(data)
        except msgspec.ValidationError:
            wire = msgspec.msgpack.decode(data)
            packet = read_leniently(kind, wire, checks_version=self._checks_version)
        if _may_be_deep(data):
            check_depth(packet)
        return packet


def _may_be_deep(data: bytes) -> bool:
    if len(data) > _COUNTED_BYTES_MAX:
        return True
    return len(data) - len(data.translate(None, _CONTAINERS)) > DEPTH_MAX
