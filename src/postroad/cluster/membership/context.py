"""What the parts of the machine share: the view, the news, and a mouth to speak with."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, Protocol

import msgspec

from postroad.cluster.membership.config import MembershipConfig
from postroad.cluster.membership.gossip import (
    GossipQueue,
    MembershipPacket,
    encode_packet,
    fit_records,
    record_size,
    retransmit_limit,
)
from postroad.cluster.membership.member_table import MemberEntry, MemberTable
from postroad.cluster.membership.members import MemberRecord, MemberState
from postroad.cluster.membership.suspicion import LocalHealth
from postroad.core import Address


class RandomSource(Protocol):
    """The random numbers a machine needs; `random.Random` has them."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...
    def shuffle(self, x: MutableSequence[Any]) -> None: ...
    def sample(self, population: list[Any], k: int) -> list[Any]: ...


class OutgoingPacket(msgspec.Struct, frozen=True, gc=False):
    """A packet to be sent."""

    address: Address
    payload: bytes
    is_stream: bool
    """Whether it must arrive, whatever its size; else a datagram will do."""
    peer: str | None
    """Who must be there, where that is known."""


class MembershipCounters(msgspec.Struct):
    """What a node's membership has done so far."""

    packets_sent: int = 0
    packets_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    probes: int = 0
    probes_failed: int = 0
    probes_by_stream: int = 0
    """Probes that only the stream answered: datagrams may be blocked on the way."""
    suspicions: int = 0
    """Members this node was the first here to suspect."""
    refutations: int = 0
    """Times this node heard that it is suspected or dead, and objected."""
    standstills: int = 0
    """Times this node found that it had stood still."""
    names_contested: int = 0
    """Second processes of a name that was taken, this node's or another's."""
    refused: dict[str, int] = {}
    """News and packets that were not believed, by reason."""


class MembershipContext:
    """Speaks for this node, and adds news to whatever it says."""

    def __init__(
        self,
        config: MembershipConfig,
        member_table: MemberTable,
        gossip_queue: GossipQueue,
        rng: RandomSource,
    ) -> None:
        self.config = config
        self.member_table = member_table
        self.gossip_queue = gossip_queue
        self.rng = rng
        self.health = LocalHealth(config.health_max)
        self.counters = MembershipCounters(refused={})
        # Whether this node may speak of itself; not before it knows that its name is free.
        self.is_member = False
        # Drained by whoever runs the machine: packets, and reasons why something was refused.
        self.outgoing: list[OutgoingPacket] = []
        self.rejections: list[str] = []

    def new_nonce(self) -> int:
        """A number nobody can guess, to know the answer by."""
        return self.rng.getrandbits(62)

    def gossip_records(
        self, *first: MemberRecord, in_stream: bool = False, capacity_max: int | None = None
    ) -> list[MemberRecord]:
        """These, and as many of the news as a packet has room for, or less if it must be short."""
        config = self.config
        capacity = config.stream_bytes_max if in_stream else config.packet_bytes_max
        if capacity_max is not None:
            capacity = max(0, min(capacity, capacity_max))
        full_bytes_max = config.stream_bytes_max if in_stream else capacity // 2
        records = fit_records(first, capacity, full_bytes_max=full_bytes_max)
        if len(self.gossip_queue):
            capacity -= sum(map(record_size, records))
            queued = self.gossip_queue.pop_batch(
                capacity,
                transmits_max=retransmit_limit(self.member_table.size, config.retransmit_factor),
                full_bytes_max=full_bytes_max,
            )
            names = {record.name for record in first}
            records += [record for record in queued if record.name not in names]
        return records

    def send(
        self,
        address: Address,
        packet: MembershipPacket,
        *,
        to: str | None = None,
        in_stream: bool = False,
    ) -> None:
        """Queue a packet, for the node of that name if it is known."""
        self.outgoing.append(OutgoingPacket(address, self.encode(packet), in_stream, to))

    def encode(self, packet: MembershipPacket) -> bytes:
        """The packet's bytes, counted as sent."""
        payload = encode_packet(packet)
        self.counters.packets_sent += 1
        self.counters.bytes_sent += len(payload)
        return payload

    def count_rejection(self, reason: str) -> None:
        """Count something that was not believed."""
        counts = self.counters.refused
        counts[reason] = counts.get(reason, 0) + 1
        self.rejections.append(reason)

    def sample_members(
        self, count: int, *, exclude: str | None = None, with_suspects: bool = False
    ) -> list[MemberEntry]:
        """Some other members at random."""
        candidates = [
            entry
            for name, entry in self.member_table.active.items()
            if name != exclude and (with_suspects or entry.state is MemberState.ALIVE)
        ]
        return self.rng.sample(candidates, min(count, len(candidates)))
