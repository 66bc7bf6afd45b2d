"""Membership packets, their MessagePack encoding, and the queue of records to gossip.

Every packet can carry member records in addition to its own fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgspec

from postroad.cluster.membership.members import MemberRecord
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError


def retransmit_limit(size: int, factor: int) -> int:
    """Return how often a record is retransmitted in a cluster of that size."""
    return factor * max(1, math.ceil(math.log10(size + 1)))


class GossipQueue:
    """Transmit-limited broadcast queue: the newest record of each member, least sent first."""

    def __init__(self) -> None:
        # Records by number of transmissions, then by member name.
        self._by_transmits: list[dict[str, MemberRecord]] = [{}]
        # Number of transmissions of the queued record, by member name.
        self._transmits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._transmits)

    def add(self, record: MemberRecord) -> None:
        """Queue the record; it replaces an older one of the same member."""
        self.drop(record.name)
        self._transmits[record.name] = 0
        self._by_transmits[0][record.name] = record

    def drop(self, name: str) -> None:
        """Remove the queued record of a member."""
        transmits = self._transmits.pop(name, None)
        if transmits is not None:
            del self._by_transmits[transmits][name]

    def pop_batch(
        self, capacity: int, *, transmits_max: int, full_bytes_max: int
    ) -> list[MemberRecord]:
        """Return records that fit; drop those that have now been sent often enough."""
        queued = (record for level in self._by_transmits for record in level.values())
        batch = fit_records(queued, capacity, full_bytes_max=full_bytes_max)
        for record in batch:
            self._count_transmit(record.name, transmits_max)
        return batch

    def _count_transmit(self, name: str, transmits_max: int) -> None:
        transmits = self._transmits[name] + 1
        record = self._by_transmits[transmits - 1].pop(name)
        if transmits >= transmits_max:
            del self._transmits[name]
            return
        if transmits == len(self._by_transmits):
            self._by_transmits.append({})
        self._transmits[name] = transmits
        self._by_transmits[transmits][name] = record


class _Packet(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    records: list[MemberRecord] = []


class ProbePacket(_Packet, frozen=True, tag=1):
    """SWIM ping. The reply is a `ProbeAckPacket` with the same nonce."""

    nonce: int
    name: str
    instance: int
    """Process number of the sender."""
    is_joining: bool = False
    """Whether the sender is joining, not a member yet, and wants the receiver's name."""
    padding: bytes = b""
    """Ignored. Makes the probe about as long as its ack, against reflection attacks."""


class ProbeAckPacket(_Packet, frozen=True, tag=2):
    """SWIM ack: identity and incarnation of the node that was probed."""

    nonce: int
    name: str
    instance: int
    leave_digest: bytes
    incarnation: int
    is_member: bool


class ProbeRequestPacket(_Packet, frozen=True, tag=3):
    """SWIM ping-req: probe that member for me. The reply is its ack, or a nack."""

    nonce: int
    target: str
    padding: bytes = b""


class ProbeNackPacket(_Packet, frozen=True, tag=4):
    """Lifeguard nack: the relay is alive, but the target did not acknowledge its probe either."""

    nonce: int


class GossipPacket(_Packet, frozen=True, tag=5):
    """Member records only."""


class SyncRequestPacket(_Packet, frozen=True, tag=6):
    """Push-pull request with a digest of the state. The reply is a `SyncReplyPacket`."""

    nonce: int
    digest: bytes


class SyncReplyPacket(_Packet, frozen=True, tag=7):
    """The full state, or no records if the digests agree."""

    nonce: int
    agrees: bool
    name: str
    instance: int
    is_member: bool


class PropertiesRequestPacket(_Packet, frozen=True, tag=8):
    """Request for properties that did not fit into a packet. The reply is a `GossipPacket`."""

    version: int
    """The newest version of the properties that the sender knows of."""
    instance: int
    """Process number of the member; versions of a later process are unrelated."""


MembershipPacket: TypeAlias = (
    ProbePacket
    | ProbeAckPacket
    | ProbeRequestPacket
    | ProbeNackPacket
    | GossipPacket
    | SyncRequestPacket
    | SyncReplyPacket
    | PropertiesRequestPacket
)


class Arrival(NamedTuple):
    """How, when and from where a packet was received."""

    source: Address
    """The address that the sender advertises."""
    origin: Address
    """The address from which a datagram was really sent."""
    now: float
    in_stream: bool
    is_reply: bool
    """Whether the packet is the reply to a request of this node over TCP."""
    size: int

    @property
    def reply_bytes_max(self) -> int:
        """Maximum size of a reply by datagram: the source address may be forged."""
        return _REPLY_FACTOR * self.size


# Bytes of an ack besides the name, and of a record without properties.
_REPLY_BYTES = 64
# A reply by datagram is at most this number times as long as its request.
_REPLY_FACTOR = 2

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MembershipPacket)


def encode_packet(packet: MembershipPacket) -> bytes:
    return _encoder.encode(packet)


def decode_packet(data: bytes, *, records_max: int) -> MembershipPacket:
    """Return the packet in the bytes; raises MalformedPayloadError if they hold none."""
    try:
        packet: MembershipPacket = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedPayloadError(f"not a membership packet: {error}") from None
    if len(packet.records) > records_max + 1:
        raise MalformedPayloadError(
            f"packet has {len(packet.records)} records; allowed: {records_max + 1}"
        )
    if len({record.name for record in packet.records}) < len(packet.records):
        raise MalformedPayloadError("packet has two records of one member")
    return packet


def padding_for(name: str) -> bytes:
    """Return padding that makes a probe as long as the ack of that node with a few records."""
    return bytes(_REPLY_BYTES + len(name.encode()))


def record_size(record: MemberRecord) -> int:
    return len(_encoder.encode(record))


def fit_records(
    records: Iterable[MemberRecord], capacity: int, *, full_bytes_max: int
) -> list[MemberRecord]:
    """Return the first records that fit, without properties where a record is too long."""
    fitting = []
    for record in records:
        size = record_size(record)
        if size > full_bytes_max:
            record = record.without_properties()
            size = record_size(record)
        if size > capacity:
            break
        capacity -= size
        fitting.append(record)
    return fitting
