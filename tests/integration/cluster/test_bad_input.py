"""Invalid datagrams and packets: nothing breaks, no member is removed."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from postroad.cluster import MembershipEventType, MemberState
from postroad.cluster.agent import SUBJECT
from postroad.cluster.membership import MemberRecord, gossip
from postroad.core.errors import MessagingError
from postroad.net import Address, MessagingService
from postroad.wire import Datagram, encode_datagram, encode_preamble
from tests.support.cluster.nodes import (
    CLUSTER,
    QUICK,
    Node,
    all_know,
    request_full_state,
    running_cluster,
    running_node,
    running_service,
)
from tests.support.deadlines import eventually, reaches
from tests.support.net.peers import LOOPBACK

DATAGRAM_BYTES_MAX = 65_507


class Attacker:
    """Throws datagrams at nodes, from one socket and under any name."""

    def __init__(self, sock: socket.socket, records: dict[str, MemberRecord]) -> None:
        self._sock = sock
        # What it found out about the members.
        self._records = records
        self.address = Address(LOOPBACK, sock.getsockname()[1])

    def forge(self, member: str, /, **changes: object) -> MemberRecord:
        """What is known of a member, changed."""
        return msgspec.structs.replace(self._records[member], **changes)

    def throw(self, target: Node, data: bytes) -> None:
        self._sock.sendto(data, target.address)

    def say(
        self, target: Node, packet: gossip.MembershipPacket | bytes, *, cluster: str = CLUSTER
    ) -> None:
        """Send a well-formed datagram with a packet or garbage in it."""
        payload = packet if isinstance(packet, bytes) else gossip.encode_packet(packet)
        host, port = self.address
        datagram = Datagram("attacker", host, port, SUBJECT, payload)
        self.throw(target, encode_datagram(encode_preamble(cluster), datagram))


@contextmanager
def attacker(records: dict[str, MemberRecord]) -> Iterator[Attacker]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((LOOPBACK, 0))
        yield Attacker(sock, records)


def refused(node: Node, reason: str) -> int:
    return node.agent.statistics().counters.rejected.get(reason, 0)


def datagrams_rejected(node: Node) -> int:
    assert node.agent.datagram_service is not None
    return node.agent.datagram_service.statistics().refused


@asynccontextmanager
async def attacked_cluster() -> AsyncIterator[tuple[list[Node], Attacker]]:
    """Afterwards all are still members, the same processes, and have never been removed."""
    async with running_cluster("a b c", config=QUICK) as nodes:
        processes = [node.agent.local_member.instance for node in nodes]
        with attacker(await request_full_state(nodes[0])) as enemy:
            yield nodes, enemy
        for node in nodes:
            # News still travel, so nobody is deaf or dumb.
            node.agent.set_properties({"still": node.name})
        honest = [node.name for node in nodes]
        for node in nodes:
            await node.until(
                lambda node: [node.see(name).properties.get("still") for name in honest] == honest,
                "all are well",
            )
            assert [node.see(started.name).instance for started in nodes] == processes
            assert not [
                change
                for change in node.reported(MembershipEventType.REMOVED)
                if change.member.name in honest
            ]


# Garbage.


GARBAGE_DATAGRAMS = [
    b"",
    b"\x00",
    encode_preamble(CLUSTER),
    encode_preamble(CLUSTER) + b"\xff\xff\xff\xff",
    encode_preamble(CLUSTER) + b"\x00\x00\x00\x02\xc1\xc1",
    encode_preamble(CLUSTER) + bytes(DATAGRAM_BYTES_MAX - 4),
    bytes(DATAGRAM_BYTES_MAX),
]
GARBAGE_PACKETS = [
    b"",
    b"\xc1",
    msgspec.msgpack.encode([99, []]),
    msgspec.msgpack.encode([1, [], "number", "a", "b", 1]),
    msgspec.msgpack.encode([5, [["a"]]]),
    b"\x91" * 20_000,
    bytes(65_000),
]


async def test_garbage_is_rejected_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with attacked_cluster() as (nodes, enemy):
        for node in nodes:
            for number, data in enumerate(GARBAGE_DATAGRAMS, 1):
                enemy.throw(node, data)
                await reaches(partial(datagrams_rejected, node), number)
            for number, payload in enumerate(GARBAGE_PACKETS, 1):
                enemy.say(node, payload)
                await reaches(partial(refused, node, "malformed packet"), number)
    assert " rejected: " in caplog.text


async def test_datagrams_of_another_cluster(caplog: pytest.LogCaptureFixture) -> None:
    async with attacked_cluster() as (nodes, enemy):
        a, b, _c = nodes
        death = enemy.forge(
            "b", state=MemberState.DEAD, incarnation=b.agent.local_member.incarnation + 9
        )
        enemy.say(a, gossip.GossipPacket(records=[death]), cluster="another")
        await eventually(lambda: datagrams_rejected(a) == 1)
        assert a.see("b").is_reachable
    assert "datagram of another cluster" in caplog.text


async def test_flood(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(11)
    async with attacked_cluster() as (nodes, enemy), asyncio.timeout(30):
        a = nodes[0]
        for number in range(1, 5_001):
            data = chance.randbytes(chance.randrange(200))
            if number % 2:
                enemy.throw(a, data)
            else:
                enemy.say(a, data)
            if number % 100 == 0:
                # More at once would be dropped by the kernel, and would test nothing.
                while datagrams_rejected(a) + refused(a, "malformed packet") < number:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        assert datagrams_rejected(a) == refused(a, "malformed packet") == 2_500
        # Recorder, but not five thousand times.
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert 0 < len(lines) < 50


# Forgeries.


async def until_refuted(node: Node, incarnation: int) -> None:
    def has_received(node_: Node) -> bool:
        member = node_.see("b")
        return member.is_reachable and member.incarnation > incarnation

    await node.until(has_received, "b has objected")


async def test_forged_death() -> None:
    """It is but a suspicion, and the member objects in time."""
    async with attacked_cluster() as (nodes, enemy):
        a, b, c = nodes
        for ahead in (0, 1, 1_000):
            local = b.agent.local_member
            incarnation = local.incarnation + ahead
            death = enemy.forge(
                "b", state=MemberState.DEAD, incarnation=incarnation, reported_by="c"
            )
            for node in (a, c):
                enemy.say(node, gossip.GossipPacket(records=[death]))
            for node in (a, c):
                await until_refuted(node, incarnation)
        assert b.agent.statistics().counters.refutations >= 3


async def test_forged_death_of_the_receiver() -> None:
    async with attacked_cluster() as (nodes, enemy):
        a = nodes[0]
        before = a.agent.local_member.incarnation
        enemy.say(a, gossip.GossipPacket(records=[enemy.forge("a", state=MemberState.DEAD)]))
        await eventually(lambda: a.agent.local_member.incarnation > before)


async def test_forged_leave() -> None:
    async with attacked_cluster() as (nodes, enemy):
        a, b, _c = nodes
        for secret in (b"", b"guess", bytes(64)):
            leave_record = enemy.forge("b", state=MemberState.LEFT, leave_secret=secret)
            enemy.say(a, gossip.GossipPacket(records=[leave_record]))
            enemy.say(b, gossip.GossipPacket(records=[leave_record]))
        await eventually(lambda: refused(a, "forged leave") == 3)
        await eventually(lambda: refused(b, "forged leave") == 3)


@pytest.mark.parametrize("has_port", [True, False], ids=["attacker's address", "nobody's address"])
async def test_forged_successor(has_port: bool) -> None:
    """A newer process of a member's name: the member is asked, and it lives."""
    async with attacked_cluster() as (nodes, enemy):
        a, b, c = nodes
        local = b.agent.local_member
        successor = enemy.forge(
            "b",
            instance=local.instance + 1,
            incarnation=local.incarnation + 1,
            port=enemy.address.port if has_port else 1,
        )
        for node in (a, b, c):
            enemy.say(node, gossip.GossipPacket(records=[successor]))
        for node in (a, c):
            await node.eventually(lambda node: node.agent.statistics().counters.name_conflicts >= 1)
        # Longer than the question may take.
        enough = a.agent.statistics().counters.probes + 8
        await eventually(lambda: a.agent.statistics().counters.probes >= enough)
        assert b.agent.failure is None


async def test_forged_answers() -> None:
    """An answer nobody asked for means nothing, nor does a question in another's name."""
    async with attacked_cluster() as (nodes, enemy):
        a, b, _c = nodes
        local = b.agent.local_member
        before = a.agent.statistics().counters.packets_received
        for number in range(100):
            rest: dict[str, Any] = {"leave_digest": b"", "incarnation": 0, "is_member": True}
            for name, instance in (("b", local.instance + 1), ("a", 1)):
                enemy.say(
                    a, gossip.ProbeAckPacket(nonce=number, name=name, instance=instance, **rest)
                )
        enemy.say(a, gossip.ProbePacket(nonce=1, name="a", instance=7, is_joining=True))
        enemy.say(a, gossip.ProbePacket(nonce=1, name="b", instance=local.instance + 1))
        enemy.say(a, gossip.SyncRequestPacket(nonce=1, digest=b""))
        await eventually(lambda: a.agent.statistics().counters.packets_received >= before + 203)
        assert a.agent.failure is None


IMPOSSIBLE_RECORDS: list[dict[str, object]] = [
    {"incarnation": -1},
    {"incarnation": 1 << 63},
    {"port": 0},
    {"host": ""},
    {"host": "h" * 300},
    {"name": ""},
    {"version": -1},
    {"leave_digest": b""},
    {"leave_secret": bytes(60_000)},
    {"reported_by": "w" * 1_000},
    {"properties": {"k": "x" * 20_000}},
]


async def test_impossible_record_is_rejected() -> None:
    async with attacked_cluster() as (nodes, enemy):
        a = nodes[0]
        enemy.say(a, gossip.GossipPacket(records=[enemy.forge("b", incarnation=(1 << 62) - 1)]))
        await eventually(lambda: refused(a, "incarnation out of range") == 1)
        for number, changes in enumerate(IMPOSSIBLE_RECORDS, 1):
            enemy.say(a, gossip.GossipPacket(records=[enemy.forge("b", **changes)]))
            await reaches(partial(refused, a, "malformed record"), number, str(changes)[:50])


async def test_newcomers_at_the_address_of_members() -> None:
    async with attacked_cluster() as (nodes, enemy):
        a, b, _c = nodes
        for place, victim in enumerate((a, b)):
            ghost = enemy.forge(victim.name, name=f"ghost-{place}", instance=5)
            enemy.say(a, gossip.GossipPacket(records=[ghost]))
        await eventually(lambda: refused(a, "claims this node's address") >= 1)
        await eventually(lambda: refused(a, "claims another member's address") >= 1)
        # They do not answer under those names, so that they never are members.
        assert all(len(node.reported(MembershipEventType.ADDED)) == 2 for node in nodes)
        await all_know(nodes)


async def test_members_that_do_not_exist_are_never_there() -> None:
    async with attacked_cluster() as (nodes, enemy):
        a = nodes[0]
        ghosts = [
            enemy.forge("a", name=f"ghost-{number}", instance=5, port=1) for number in range(5)
        ]
        enemy.say(a, gossip.GossipPacket(records=ghosts))
        async with running_node("d", a, config=QUICK) as d:
            await all_know([*nodes, d])
        assert {change.member.name for change in a.reported(MembershipEventType.ADDED)} == {
            "b",
            "c",
            "d",
        }


# The same over TCP.


async def ask(service: MessagingService, target: Node, payload: bytes) -> bytes:
    return await service.request(target.address, SUBJECT, payload)


async def test_bad_packets_in_streams() -> None:
    chance = random.Random(12)
    async with attacked_cluster() as (nodes, enemy), running_service("attacker") as service:
        a = nodes[0]
        for size in (0, 1, 100, 100_000, 4_000_000):
            assert await ask(service, a, chance.randbytes(size)) == b""
        assert refused(a, "malformed packet") == 5
        many = [enemy.forge("b")] * 10_000
        assert await ask(service, a, gossip.encode_packet(gossip.GossipPacket(records=many))) == b""
        assert refused(a, "malformed packet") == 6
        death = enemy.forge("b", state=MemberState.DEAD, reported_by="c")
        await ask(service, a, gossip.encode_packet(gossip.GossipPacket(records=[death])))
        await a.until(lambda node: node.see("b").is_reachable, "b has objected")
        with pytest.raises(MessagingError):
            await service.request(a.address, SUBJECT, bytes(5_000_000))
