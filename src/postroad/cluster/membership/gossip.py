"""What nodes send each other, as MessagePack. Every packet may carry news besides."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgspec

from postroad.cluster.membership.members import MemberRecord
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError


def retransmit_limit(size: int, factor: int) -> int:
    """How often a node passes on a piece of news in a cluster of that size."""
    return factor * max(1, math.ceil(math.log10(size + 1)))


class GossipQueue:
    """At most one piece of news for each member, the newest."""

    def __init__(self) -> None:
        # News by the number of times they were told, then by member.
        self._by_transmits: list[dict[str, MemberRecord]] = [{}]
        # Member -> how often its news were told.
        self._transmits: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._transmits)

    def add(self, record: MemberRecord) -> None:
        """Have the news passed on; they replace older ones of the same member."""
        self.drop(record.name)
        self._transmits[record.name] = 0
        self._by_transmits[0][record.name] = record

    def drop(self, name: str) -> None:
        """Forget the news of a member."""
        transmits = self._transmits.pop(name, None)
        if transmits is not None:
            del self._by_transmits[transmits][name]

    def pop_batch(
        self, capacity: int, *, transmits_max: int, full_bytes_max: int
    ) -> list[MemberRecord]:
        """News that fit the room; those told so often are dropped."""
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
    """Are you there? The answer is an Ack with the same number."""

    nonce: int
    name: str
    instance: int
    """Who asks."""
    is_joining: bool = False
    """Whether the sender is no member yet, and wants to join under the receiver's name."""
    padding: bytes = b""
    """Of no meaning: an answer by datagram is never much longer than its question."""


class ProbeAckPacket(_Packet, frozen=True, tag=2):
    """I am here, and this is who I am."""

    nonce: int
    name: str
    instance: int
    leave_digest: bytes
    incarnation: int
    is_member: bool


class ProbeRequestPacket(_Packet, frozen=True, tag=3):
    """Please ask that member for me. The answer is its Ack, or a Nack."""

    nonce: int
    target: str
    padding: bytes = b""


class ProbeNackPacket(_Packet, frozen=True, tag=4):
    """I am well, but the member you had me ask does not answer me either."""

    nonce: int


class GossipPacket(_Packet, frozen=True, tag=5):
    """Nothing but news."""


class SyncRequestPacket(_Packet, frozen=True, tag=6):
    """Do we agree? The answer is a Sync with the same number."""

    nonce: int
    digest: bytes


class SyncReplyPacket(_Packet, frozen=True, tag=7):
    """All I know, or nothing if we agree."""

    nonce: int
    agrees: bool
    name: str
    instance: int
    is_member: bool


class PropertiesRequestPacket(_Packet, frozen=True, tag=8):
    """Tell me your properties: your news came without. The answer is News."""

    version: int
    """The newest the sender has heard of."""
    instance: int
    """Of which process; its successor has nothing to do with it."""


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
    """How a packet came."""

    source: Address
    """What its sender says where it is."""
    origin: Address
    """Where a datagram really came from."""
    now: float
    in_stream: bool
    is_reply: bool
    """Whether it answers a packet of this node over the stream."""
    size: int

    @property
    def reply_bytes_max(self) -> int:
        """How long an answer by datagram may be: whoever is there may not have asked."""
        return _REPLY_FACTOR * self.size


# What an Ack has beside names, and a record without properties.
_REPLY_BYTES = 64
# An answer by datagram is no longer than so many times its question.
_REPLY_FACTOR = 2

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MembershipPacket)


def encode_packet(packet: MembershipPacket) -> bytes:
    """The bytes to send."""
    return _encoder.encode(packet)


def decode_packet(data: bytes, *, records_max: int) -> MembershipPacket:
    """Read what a peer sent; raises MalformedPayloadError for anything else."""
    try:
        packet: MembershipPacket = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedPayloadError(f"no packet of the membership: {error}") from None
    if len(packet.records) > records_max + 1:
        raise MalformedPayloadError(f"a packet with {len(packet.records)} records")
    if len({record.name for record in packet.records}) < len(packet.records):
        raise MalformedPayloadError("a packet that tells of one member twice")
    return packet


def padding_for(name: str) -> bytes:
    """What makes a question as long as the answer of a node of that name, and some news."""
    return bytes(_REPLY_BYTES + len(name.encode()))


def record_size(record: MemberRecord) -> int:
    """Bytes a record takes in a packet."""
    return len(_encoder.encode(record))


def fit_records(
    records: Iterable[MemberRecord], capacity: int, *, full_bytes_max: int
) -> list[MemberRecord]:
    """As many of the records as there is room for, with their properties where these are short."""
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
