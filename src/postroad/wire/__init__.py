"""The protocol between two nodes, sans I/O: codecs, handshake, connection state machine."""

from postroad.core.timing import NEVER
from postroad.wire.codecs.codec import JOIN_BYTES_MAX
from postroad.wire.connection import WireConnection
from postroad.wire.connection_setup import WireConfig
from postroad.wire.datagram import Datagram, Seal, decode_datagram, encode_datagram
from postroad.wire.deadline_map import DeadlineMap
from postroad.wire.frame_reader import BufferCache
from postroad.wire.frame_rules import ConnectionState
from postroad.wire.frames import (
    CancelFrame,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    Frame,
    FrameIgnored,
    GoodbyeFrame,
    HelloFrame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from postroad.wire.handshake import (
    DOCUMENTED,
    PROFILES,
    ZEEBE,
    ProtocolProfile,
    encode_preamble,
    java_string_hash,
)
from postroad.wire.unfinished_frames import Share, UnfinishedFrames

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
