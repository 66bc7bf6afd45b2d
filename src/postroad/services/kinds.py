"""The kinds of packets, by the words they have in topics."""

from __future__ import annotations

from enum import StrEnum

VERSION = "5"
"""The protocol that this package speaks; a text, never a number."""


class Kind(StrEnum):
    """What a packet is. The value is its word in topics."""

    # The hash of enumerations is written in Python, and a kind is looked up for every packet.
    __hash__ = str.__hash__

    EVENT = "EVENT"
    EVENT_ACK = "EVENTACK"
    STREAM_PROGRESS = "STREAM"
    REQUEST = "REQ"
    RESPONSE = "RES"
    DISCOVER = "DISCOVER"
    INFO = "INFO"
    DISCONNECT = "DISCONNECT"
    HEARTBEAT = "HEARTBEAT"
    PING = "PING"
    PONG = "PONG"
    GOSSIP_HELLO = "GOSSIP_HELLO"
    GOSSIP_REQUEST = "GOSSIP_REQ"
    GOSSIP_RESPONSE = "GOSSIP_RES"


GOSSIP = frozenset({Kind.GOSSIP_HELLO, Kind.GOSSIP_REQUEST, Kind.GOSSIP_RESPONSE})
"""Packets between nodes that speak TCP to each other; nobody looks at their version."""
