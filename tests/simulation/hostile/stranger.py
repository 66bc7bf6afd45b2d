"""Somebody who can reach every port, hears every datagram, and knows no secret."""

from __future__ import annotations

import asyncio
import struct
from random import Random

import msgspec

from postroad.cluster.agent import SUBJECT
from postroad.cluster.membership import MemberRecord, MemberState
from postroad.cluster.membership.gossip import (
    GossipPacket,
    MembershipPacket,
    ProbeAckPacket,
    ProbePacket,
    ProbeRequestPacket,
    PropertiesRequestPacket,
    SyncRequestPacket,
    decode_packet,
    encode_packet,
)
from postroad.cluster.membership.members import leave_digest
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError
from postroad.testing import SimNode
from postroad.wire import Datagram, HelloFrame, encode_datagram, encode_preamble
from postroad.wire.hello import encode_hello

PORT = 7000
_HEADER = struct.Struct(">IBBHIQ")
_HELLO = 3
# What a datagram of the membership holds at most.
_RECORDS = 8
_FAREWELL = leave_digest(b"stranger")


class Stranger:
    """A process that answers under whatever name it claims, and attacks when it is told to."""

    def __init__(self, cluster: str, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        # The name it claims.
        self.name = "stranger"
        # Datagrams that were sent between others, and to whom.
        self.recorded: list[tuple[bytes, Address]] = []
        self._address = Address("", 0)
        self._transport: asyncio.DatagramTransport | None = None

    async def run(self, node: SimNode) -> None:
        loop = asyncio.get_running_loop()
        self._address = Address(node.host, PORT)
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self), local_addr=self._address
        )
        self._transport = transport
        await loop.create_server(lambda: _Connections(self), node.host, PORT)
        await loop.create_future()

    def greeting(self) -> bytes:
        """What it says to whoever connects: that it has the name, is an elder, and a member."""
        hello = HelloFrame(
            cluster=self._cluster,
            name=self.name,
            incarnation=1,
            address=self._address,
            frame_bytes_max=1 << 20,
            requests_pending_max=16,
            is_member=True,
        )
        body = encode_hello(hello)
        return b"\0\3" + _HEADER.pack(16 + len(body), _HELLO, 0, 0, 0, 0) + body

    def answer(self, data: bytes, source: Address) -> None:
        """Acknowledge every ping that can be read."""
        try:
            body: list[object] = msgspec.msgpack.decode(data[8:])
            assert isinstance(body[4], bytes)
            packet = decode_packet(body[4], records_max=10_000)
        except (msgspec.DecodeError, MalformedPayloadError, AssertionError, TypeError):
            return
        if isinstance(packet, ProbePacket):
            ack = ProbeAckPacket(
                nonce=packet.nonce,
                name=self.name,
                instance=1,
                leave_digest=_FAREWELL,
                incarnation=1 << 42,
                is_member=True,
            )
            self._say(source, ack, self._address)

    # Attacks.

    def flood(self, victim: Address) -> None:
        """Tell of hundreds of nodes that do not exist."""
        for _ in range(80):
            names = {f"ghost-{self._rng.getrandbits(24)}" for _ in range(_RECORDS)}
            self._say(victim, GossipPacket(records=[self._forge(name) for name in sorted(names)]))

    def claim(self, victim: Address, name: str) -> None:
        """Be the node of that name, in every way there is to say so."""
        self.name = name
        self._say(victim, ProbePacket(nonce=1, name="nobody", instance=7), self._address)
        self._say(victim, ProbePacket(nonce=2, name=name, instance=1), self._address)
        record = self._forge(name, instance=1, address=self._address)
        self._say(victim, GossipPacket(records=[record]), self._address)

    def accuse(self, victim: Address, record: MemberRecord) -> None:
        """Say that a member is dead, and that it left."""
        for state in (MemberState.SUSPECT, MemberState.DEAD, MemberState.LEFT):
            lie = msgspec.structs.replace(
                record, state=state, incarnation=record.incarnation + 1, reported_by="somebody"
            )
            self._say(victim, GossipPacket(records=[lie]))

    def reflect(self, victim: Address, bystander: Address, name: str) -> None:
        """Ask for whatever there is, in the name of somebody who did not ask."""
        questions: list[MembershipPacket] = [
            ProbePacket(nonce=3, name="nobody", instance=7),
            SyncRequestPacket(nonce=4, digest=b""),
            PropertiesRequestPacket(version=0, instance=1),
            ProbeRequestPacket(nonce=5, target=name),
            ProbeRequestPacket(nonce=6, target="nobody"),
        ]
        for packet in questions:
            self._say(victim, packet, bystander)

    def replay(self) -> None:
        """Send again what others have sent, to whom it was meant for and to others."""
        if self._transport is None or not self.recorded:
            return
        chosen = self._rng.choices(self.recorded, k=min(200, len(self.recorded)))
        for data, target in chosen:
            other = self._rng.choice(chosen)[1]
            self._transport.sendto(data, self._rng.choice((target, other)))

    def _forge(
        self, name: str, *, instance: int | None = None, address: Address | None = None
    ) -> MemberRecord:
        host, port = address or Address(self._address.host, self._rng.randint(8_000, 60_000))
        number = self._rng.getrandbits(40) if instance is None else instance
        return MemberRecord(name, number, host, port, 1 << 42, MemberState.ALIVE, 0, _FAREWELL, {})

    def _say(
        self, target: Address, packet: MembershipPacket, sender: Address | None = None
    ) -> None:
        if self._transport is not None:
            host, port = sender or self._address
            plain = Datagram(self.name, host, port, SUBJECT, encode_packet(packet))
            data = encode_datagram(encode_preamble(self._cluster), plain)
            self._transport.sendto(data, target)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._stranger.answer(data, Address(*addr[:2]))


class _Connections(asyncio.Protocol):
    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._stranger.greeting())
