"""State shared by the parts of the membership state machine.

Member table, gossip queue, random source, counters, and the outgoing packets.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, Protocol

import msgspec

from postroad.cluster.membership.config import LocalHealth, MembershipConfig
from postroad.cluster.membership.gossip import (
    GossipQueue,
    MembershipPacket,
    ProbePacket,
    encode_packet,
    fit_records,
    padding_for,
    record_size,
    retransmit_limit,
)
from postroad.cluster.membership.member_table import MemberEntry, MemberTable
from postroad.cluster.membership.members import MemberRecord, MemberState
from postroad.core import Address


class RandomSource(Protocol):
    """Random numbers that the state machine needs; `random.Random` implements it."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...
    def shuffle(self, x: MutableSequence[Any]) -> None: ...
    def sample(self, population: list[Any], k: int) -> list[Any]: ...


class OutgoingPacket(msgspec.Struct, frozen=True, gc=False):
    """A packet to transmit."""

    address: Address
    payload: bytes
    is_stream: bool
    """Whether to send the packet over TCP; otherwise a datagram will do."""
    peer: str | None
    """Name of the node expected at the address, if it is known."""


class MembershipCounters(msgspec.Struct):
    """Counters of one node's membership protocol since its start."""

    packets_sent: int = 0
    packets_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    probes: int = 0
    probes_failed: int = 0
    probes_by_stream: int = 0
    """Probes that were acknowledged over TCP only: datagrams may be blocked on the way."""
    suspicions: int = 0
    """Suspicions that this node started after a failed probe."""
    refutations: int = 0
    """Times this node refuted that it is suspected or dead."""
    stalls: int = 0
    """Times this node detected that its process had stalled."""
    name_conflicts: int = 0
    """Second processes with a name in use, this node's name or another member's."""
    rejected: dict[str, int] = {}
    """Rejected records and packets, by reason."""


class MembershipContext:
    """Queues outgoing packets and adds gossip records to them."""

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
        self.health = LocalHealth(config.local_health_max)
        self.counters = MembershipCounters(rejected={})
        # False until this node knows that its name is free; until then it does not gossip itself.
        self.is_member = False
        # Drained by the agent: packets to send, and the reasons of rejections.
        self.outgoing: list[OutgoingPacket] = []
        self.rejections: list[str] = []

    def new_nonce(self) -> int:
        """Return an unguessable number that matches a reply to its request."""
        return self.rng.getrandbits(62)

    def gossip_records(
        self, *first: MemberRecord, in_stream: bool = False, capacity_max: int | None = None
    ) -> list[MemberRecord]:
        """Return the given records, then as many queued ones as fit into the packet."""
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
        """Queue a packet for the address, and for the node of that name if it is given."""
        self.outgoing.append(OutgoingPacket(address, self.encode(packet), in_stream, to))

    def send_probe(
        self,
        nonce: int,
        target: MemberRecord,
        records: list[MemberRecord],
        *,
        is_joining: bool = False,
        in_stream: bool = False,
    ) -> None:
        """Queue a probe of the node in the record."""
        local = self.member_table.local
        packet = ProbePacket(
            nonce=nonce,
            name=local.name,
            instance=local.instance,
            is_joining=is_joining,
            records=records,
            padding=padding_for(target.name),
        )
        self.send(target.address, packet, to=target.name, in_stream=in_stream)

    def encode(self, packet: MembershipPacket) -> bytes:
        """Encode the packet and count it as sent."""
        payload = encode_packet(packet)
        self.counters.packets_sent += 1
        self.counters.bytes_sent += len(payload)
        return payload

    def count_rejection(self, reason: str) -> None:
        """Count a rejected record or packet."""
        counts = self.counters.rejected
        counts[reason] = counts.get(reason, 0) + 1
        self.rejections.append(reason)

    def sample_members(
        self, count: int, *, exclude: str | None = None, with_suspects: bool = False
    ) -> list[MemberEntry]:
        """Return up to `count` other members, chosen at random."""
        candidates = [
            entry
            for name, entry in self.member_table.active.items()
            if name != exclude and (with_suspects or entry.state is MemberState.ALIVE)
        ]
        return self.rng.sample(candidates, min(count, len(candidates)))
