"""The protocol between two nodes, pure: bytes to frames, handshake, connection machine."""

from .codecs.codec import JOIN_BYTES_MAX
from .config import WireConfig
from .connection import WireConnection
from .datagram import Datagram, decode_datagram, encode_datagram
from .events import ConnectionEvent, ConnectionOpened, FrameIgnored
from .frames import (
    CancelFrame,
    ConnectionRole,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from .handshake import DOCUMENTED, PROFILES, ZEEBE, ProtocolProfile
from .legality import ConnectionState
from .pending import NEVER, DeadlineMap
from .preamble import encode_preamble, java_string_hash
from .reader import BufferCache
from .sealing import Seal
from .unfinished import Share, UnfinishedFrames

__all__ = [
    "DOCUMENTED",
    "JOIN_BYTES_MAX",
    "NEVER",
    "PROFILES",
    "ZEEBE",
    "BufferCache",
    "CancelFrame",
    "ConnectionEvent",
    "ConnectionOpened",
    "ConnectionRole",
    "ConnectionState",
    "Datagram",
    "DeadlineMap",
    "Frame",
    "FrameIgnored",
    "GoodbyeFrame",
    "HelloFrame",
    "ProtocolProfile",
    "ReplyFrame",
    "ReplyStatus",
    "RequestFrame",
    "Seal",
    "Share",
    "UnfinishedFrames",
    "WireConfig",
    "WireConnection",
    "decode_datagram",
    "encode_datagram",
    "encode_preamble",
    "java_string_hash",
]
