"""How packets become bytes. All nodes of a cluster must use the same: no byte tells which."""

from .cbor import CborSerializer
from .json import JsonSerializer
from .msgpack import MsgPackSerializer
from .registry import make_serializer
from .serializer import PACKET_BYTES_MAX, Serializer

__all__ = [
    "PACKET_BYTES_MAX",
    "CborSerializer",
    "JsonSerializer",
    "MsgPackSerializer",
    "Serializer",
    "make_serializer",
]
