"""Packets of the membership: their bytes, and what a machine does with them."""

from __future__ import annotations

from random import Random

from fuzz.target import Target, prefixes, require
from postroad.cluster.membership import MemberRecord, Membership, MembershipConfig, MemberState
from postroad.cluster.membership.gossip import (
    GossipPacket,
    MembershipPacket,
    ProbeAckPacket,
    ProbeNackPacket,
    ProbePacket,
    ProbeRequestPacket,
    PropertiesRequestPacket,
    SyncReplyPacket,
    SyncRequestPacket,
    decode_packet,
    encode_packet,
)
from postroad.cluster.membership.members import leave_digest
from postroad.core import Address
from postroad.core.errors import MalformedPayloadError

_RECORDS_MAX = 8
_NOW = 1_000.0
_INCARNATION = 1_000
_CONFIG = MembershipConfig(members_max=_RECORDS_MAX)
_MEMBERS = ("node-1", "node-2")
_SOURCE = Address("127.0.0.1", 26_502)
# What a packet adds to the news it carries: numbers, and two names.
_PACKET_BYTES_EXTRA = 600


def check_packet(data: bytes) -> None:
    """Any bytes are a packet or malformed, cut off or not."""
    for it in (*prefixes(data), data):
        try:
            packet = decode_packet(it, records_max=_RECORDS_MAX)
        except MalformedPayloadError:
            continue
        again = decode_packet(encode_packet(packet), records_max=_RECORDS_MAX)
        require(again == packet, f"{packet} does not survive encoding")


def check_machine(data: bytes) -> None:
    """Whatever a machine receives, it stays a sane member, and removes nobody who may live."""
    for in_stream in (False, True):
        machine = _make_machine()
        answer = machine.receive(data, _SOURCE, _NOW, in_stream=in_stream)
        if answer is not None:
            decode_packet(answer, records_max=_RECORDS_MAX)
        _check_state(machine, _NOW)
        soon = _NOW + _CONFIG.gossip_interval_s
        machine.tick(soon)
        _check_state(machine, soon)


def _check_state(machine: Membership, now: float) -> None:
    names = [member.name for member in machine.members()]
    require(set(_MEMBERS) <= set(names), f"one packet left only {names}")
    require(len(names) <= _RECORDS_MAX + 1, f"{len(names)} members")
    require(machine.local_member.state is MemberState.ALIVE, f"this node is {machine.local_member}")
    require(machine.deadline() >= now, "a deadline in the past")
    for send in machine.drain_outgoing():
        decode_packet(send.payload, records_max=_RECORDS_MAX)
        size_max = _CONFIG.packet_bytes_max + _PACKET_BYTES_EXTRA
        fits = send.is_stream or len(send.payload) <= size_max
        require(fits, f"a datagram of {len(send.payload)} bytes")


def _make_machine() -> Membership:
    """A member that knows two others, whose goodbyes nobody can forge."""
    machine = Membership(
        "node-0",
        _SOURCE,
        instance=1,
        incarnation=_INCARNATION,
        secret=b"unknown",
        rng=Random(0),
        config=_CONFIG,
    )
    machine.start(_NOW)
    machine.set_seeds([], _NOW)
    known = GossipPacket(records=[_make_record(name) for name in _MEMBERS])
    machine.receive(encode_packet(known), _SOURCE, _NOW)
    # They count once they have answered.
    for send in machine.drain_outgoing():
        ping = decode_packet(send.payload, records_max=_RECORDS_MAX)
        for record in known.records:
            if isinstance(ping, ProbePacket) and send.address == record.address:
                machine.receive(encode_packet(_make_ack(record, ping)), record.address, _NOW)
    machine.drain_outgoing()
    return machine


def _make_ack(record: MemberRecord, ping: ProbePacket) -> ProbeAckPacket:
    return ProbeAckPacket(
        nonce=ping.nonce,
        name=record.name,
        instance=record.instance,
        leave_digest=record.leave_digest,
        incarnation=record.incarnation,
        is_member=True,
    )


def _make_record(
    name: str, state: MemberState = MemberState.ALIVE, instance: int = 1
) -> MemberRecord:
    return MemberRecord(
        name=name,
        instance=instance,
        host=f"{name}.example",
        port=26_502,
        incarnation=_INCARNATION + 1,
        state=state,
        version=instance,
        leave_digest=leave_digest(name.encode() + b"unknown"),
        properties={"role": "größe"} if state is MemberState.ALIVE else None,
        reported_by="" if state is MemberState.ALIVE else "node-1",
        leave_secret=b"guess" if state is MemberState.LEFT else b"",
    )


def _seeds() -> list[bytes]:
    dead, left = _make_record("node-2", MemberState.DEAD), _make_record("node-2", MemberState.LEFT)
    suspect = _make_record("node-1", MemberState.SUSPECT)
    others = [_make_record("node-0"), _make_record("node-1", instance=2), _make_record("node-3")]
    packets: list[MembershipPacket] = [
        ProbePacket(nonce=1, name="node-1", instance=1, records=[suspect, dead]),
        ProbePacket(nonce=2, name="node-0", instance=2, is_joining=True),
        ProbeAckPacket(
            nonce=2**62,
            name="node-1",
            instance=1,
            leave_digest=b"f" * 16,
            incarnation=0,
            is_member=True,
            records=others[:1],
        ),
        ProbeRequestPacket(nonce=3, target="node-2", records=others[1:]),
        ProbeNackPacket(nonce=4),
        GossipPacket(records=[suspect, left]),
        GossipPacket(records=[dead, others[2]]),
        SyncRequestPacket(nonce=5, digest=b"12345678"),
        SyncReplyPacket(
            nonce=6, agrees=False, name="node-1", instance=1, is_member=True, records=others
        ),
        PropertiesRequestPacket(version=7, instance=1, records=others[2:]),
    ]
    return [encode_packet(packet) for packet in packets]


TARGETS = [
    Target("membership-packet", check_packet, _seeds()),
    Target("membership-machine", check_machine, _seeds()),
]
