"""The protocol between two nodes, pure: bytes to frames, handshake, connection machine."""

from .codecs.codec import JOIN_BYTES_MAX
from .config import WireConfig
from .connection import Connection
from .datagram import Datagram, decode_datagram, encode_datagram
from .events import Event, FrameIgnored, Opened
from .frames import Cancel, Frame, Goodbye, Hello, Reply, Request, Role, Status
from .handshake import DOCUMENTED, PROFILES, ZEEBE, Profile
from .legality import Phase
from .pending import NEVER, Pending
from .preamble import encode_preamble, java_string_hash
from .reader import SpareBuffer
from .sealing import Seal
from .unfinished import Share, UnfinishedFrames

__all__ = [
    "DOCUMENTED",
    "JOIN_BYTES_MAX",
    "NEVER",
    "PROFILES",
    "ZEEBE",
    "Cancel",
    "Connection",
    "Datagram",
    "Event",
    "Frame",
    "FrameIgnored",
    "Goodbye",
    "Hello",
    "Opened",
    "Pending",
    "Phase",
    "Profile",
    "Reply",
    "Request",
    "Role",
    "Seal",
    "Share",
    "SpareBuffer",
    "Status",
    "UnfinishedFrames",
    "WireConfig",
    "decode_datagram",
    "encode_datagram",
    "encode_preamble",
    "java_string_hash",
]
