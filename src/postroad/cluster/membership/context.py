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
        roster: MemberTable,
        rumours: GossipQueue,
        chance: RandomSource,
    ) -> None:
        self.config = config
        self.roster = roster
        self.rumours = rumours
        self.chance = chance
        self.health = LocalHealth(config.health_max)
        self.counters = MembershipCounters(refused={})
        # Whether this node may speak of itself; not before it knows that its name is free.
        self.is_member = False
        # Drained by whoever runs the machine: packets, and reasons why something was refused.
        self.outgoing: list[OutgoingPacket] = []
        self.refusals: list[str] = []

    def new_nonce(self) -> int:
        """A number nobody can guess, to know the answer by."""
        return self.chance.getrandbits(62)

    def gossip_records(
        self, *first: MemberRecord, in_stream: bool = False, room_max: int | None = None
    ) -> list[MemberRecord]:
        """These, and as many of the news as a packet has room for, or less if it must be short."""
        config = self.config
        room = config.stream_bytes_max if in_stream else config.packet_bytes_max
        if room_max is not None:
            room = max(0, min(room, room_max))
        full_bytes_max = config.stream_bytes_max if in_stream else room // 2
        chosen = fit_records(first, room, full_bytes_max=full_bytes_max)
        if len(self.rumours):
            room -= sum(map(record_size, chosen))
            told = self.rumours.pop_batch(
                room,
                times_max=retransmit_limit(self.roster.size, config.retransmit_factor),
                full_bytes_max=full_bytes_max,
            )
            names = {record.name for record in first}
            chosen += [record for record in told if record.name not in names]
        return chosen

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
        refused = self.counters.refused
        refused[reason] = refused.get(reason, 0) + 1
        self.refusals.append(reason)

    def sample_members(
        self, count: int, *, but: str | None = None, with_suspects: bool = False
    ) -> list[MemberEntry]:
        """Some other members at random."""
        candidates = [
            entry
            for name, entry in self.roster.active.items()
            if name != but and (with_suspects or entry.state is MemberState.ALIVE)
        ]
        return self.chance.sample(candidates, min(count, len(candidates)))
