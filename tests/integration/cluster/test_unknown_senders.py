"""Unknown senders without certificate or secret have no lasting effect on an open cluster."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from postroad.cluster import MemberState
from postroad.cluster.agent import SUBJECT
from postroad.cluster.membership import MemberRecord
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
from postroad.net import Address, MessagingService
from postroad.wire import Datagram, HelloFrame, encode_datagram, encode_preamble
from postroad.wire.hello import encode_hello
from tests.support.cluster.nodes import (
    CLUSTER,
    QUICK,
    Node,
    all_know,
    request_full_state,
    running_cluster,
    running_node,
)
from tests.support.deadlines import eventually
from tests.support.net.peers import LOOPBACK, stays
from tests.support.net.scripts import unused_address

PREAMBLE = encode_preamble(CLUSTER)
HELLO_HEADER = struct.Struct(">IBBHIQ")


class Rogue(asyncio.Protocol):
    """Says at its port that it is another node, an elder and a member, and lives there."""

    def __init__(self, hello: HelloFrame, opened: list[asyncio.BaseTransport]) -> None:
        self._hello = hello
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened.append(transport)
        body = encode_hello(self._hello)
        header = HELLO_HEADER.pack(16 + len(body), 3, 0, 0, 0, 0)
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        transport.write(b"\0\3" + header + body)


class RogueDatagrams(asyncio.DatagramProtocol):
    """Keeps what comes, and acknowledges every ping under the name of another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received: list[bytes] = []
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # loops have classes of their own

    @property
    def port(self) -> int:
        return int(self.transport.get_extra_info("sockname")[1])

    def say(
        self, target: Address, packet: MembershipPacket, *, host: str = LOOPBACK, port: int = 0
    ) -> int:
        """Send a packet, whose sender is said to be somewhere; how many bytes it took."""
        plain = Datagram(self.name, host, port or self.port, SUBJECT, encode_packet(packet))
        data = encode_datagram(PREAMBLE, plain)
        self.transport.sendto(data, target)
        return len(data)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.received.append(data)
        packet = _packet_of(data)
        if isinstance(packet, ProbePacket):
            ack = ProbeAckPacket(
                nonce=packet.nonce,
                name=self.name,
                instance=1,
                leave_digest=leave_digest(b"rogue"),
                incarnation=1 << 42,
                is_member=True,
            )
            self.say(Address(*addr[:2]), ack)


@asynccontextmanager
async def rogue_of(name: str) -> AsyncIterator[RogueDatagrams]:
    """A process at one port, for streams and datagrams, that says it has the name."""
    loop = asyncio.get_running_loop()
    opened: list[asyncio.BaseTransport] = []
    # As a node does it: a port that is free for streams first, since those are many.
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    hello = HelloFrame(
        cluster=CLUSTER,
        name=name,
        incarnation=1,
        address=Address(LOOPBACK, port),
        frame_bytes_max=1 << 20,
        requests_pending_max=10,
        is_member=True,
    )
    server = await loop.create_server(lambda: Rogue(hello, opened), sock=listening)
    try:
        transport, rogue = await loop.create_datagram_endpoint(
            lambda: RogueDatagrams(name), local_addr=(LOOPBACK, port)
        )
        opened.append(transport)
        yield rogue
    finally:
        server.close()
        for each in opened:
            each.close()


def forge(name: str, number: int = 0, *, port: int = 1, incarnation: int = 1 << 42) -> MemberRecord:
    digest = leave_digest(b"rogue")
    return MemberRecord(name, number, LOOPBACK, port, incarnation, MemberState.ALIVE, 0, digest, {})


# Names.


@pytest.mark.parametrize("way", ["stranger", "namesake", "record", "caller"])
async def test_member_does_not_leave_for_an_unknown_sender_with_its_name(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cluster("victim b c", config=QUICK) as nodes, rogue_of("victim") as rogue:
        victim = nodes[0]
        if way == "stranger":
            rogue.name = "nobody"
            rogue.say(victim.address, ProbePacket(nonce=1, name="nobody", instance=7))
            rogue.name = "victim"
        elif way == "namesake":
            rogue.say(victim.address, ProbePacket(nonce=1, name="victim", instance=1))
        elif way == "record":
            elder = forge("victim", 1, port=rogue.port)
            for node in nodes:
                rogue.say(node.address, GossipPacket(records=[elder]))
        else:
            caller = MessagingService(CLUSTER, "victim", advertise=f"{LOOPBACK}:{rogue.port}")
            async with caller:
                with pytest.raises(Exception, match="victim"):
                    await caller.request(victim.address, SUBJECT, b"")
        await eventually(lambda: "victim: name conflict" in caplog.text)
        await stays(lambda: victim.agent.failure is None)
        await all_know(nodes)
        local = victim.agent.local_member
        assert all(node.see("victim").instance == local.instance for node in nodes)


async def test_unknown_sender_does_not_block_a_join() -> None:
    place = unused_address()
    async with running_node("a", config=QUICK) as a, rogue_of("b") as rogue:
        is_over = False

        async def pester() -> None:
            while not is_over:
                rogue.say(place, GossipPacket(records=[forge("b", 1, port=rogue.port)]))
                rogue.say(place, ProbePacket(nonce=1, name="b", instance=1))
                await asyncio.sleep(0.01)

        pestering = asyncio.create_task(pester())
        async with running_node("b", a, config=QUICK, bind=place) as b:
            await all_know([a, b])
        is_over = True
        await pestering


# Answers.


@pytest.mark.parametrize(
    "packet",
    [
        ProbePacket(nonce=1, name="x", instance=7),
        ProbePacket(nonce=1, name="x", instance=7, padding=bytes(200)),
        ProbePacket(nonce=1, name="", instance=0),
        SyncRequestPacket(nonce=1, digest=b""),
        PropertiesRequestPacket(version=0, instance=1),
        ProbeRequestPacket(nonce=1, target="nobody"),
        ProbeRequestPacket(nonce=1, target="b"),
    ],
    ids=lambda packet: str(packet)[:40],
)
async def test_reply_goes_to_the_source_and_is_not_longer_than_the_request(
    packet: MembershipPacket,
) -> None:
    large = {"text": "x" * 500}
    async with (
        running_cluster("a b", properties=large) as (a, _b),
        rogue_of("x") as rogue,
        rogue_of("elsewhere") as victim,
    ):
        bytes_sent = 0
        for _ in range(20):
            bytes_sent += rogue.say(a.address, packet, port=victim.port)
        rogue.say(a.address, GossipPacket(records=[forge("rumour", 5)]), port=victim.port)
        # Datagrams between two sockets of one machine keep their order: this answer is the last.
        rogue.say(a.address, ProbePacket(nonce=2, name="x", instance=7, padding=bytes(200)))
        await eventually(lambda: any(map(_is_last_reply, rogue.received)))
        answered = [
            data for data in rogue.received if not (_is_candidate(data) or _is_last_reply(data))
        ]
        assert sum(map(len, answered)) <= 2 * bytes_sent
        assert victim.received == [], "nobody answers where nobody asked from"
        if isinstance(packet, SyncRequestPacket | PropertiesRequestPacket):
            assert answered == []
            assert a.agent.statistics().counters.rejected["sent by datagram"] == 20


def _packet_of(data: bytes) -> MembershipPacket:
    return decode_packet(msgspec.msgpack.decode(data[8:])[4], records_max=10_000)


def _is_candidate(data: bytes) -> bool:
    return isinstance(_packet_of(data), ProbePacket)


def _is_last_reply(data: bytes) -> bool:
    packet = _packet_of(data)
    return isinstance(packet, ProbeAckPacket) and packet.nonce == 2


# Crowds.


async def flood(target: Node, count: int = 5_000) -> None:
    """Tell of nodes that do not exist, ten in a datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for first in range(0, count, 10):
            news = [forge(f"ghost-{number}", number) for number in range(first, first + 10)]
            plain = Datagram("x", LOOPBACK, 1, SUBJECT, encode_packet(GossipPacket(records=news)))
            sock.sendto(encode_datagram(PREAMBLE, plain), target.address)
            await asyncio.sleep(0)


async def test_flood_of_forged_records_fills_no_table_and_blocks_no_join() -> None:
    async with running_cluster("a b") as (a, b):
        await flood(a)
        async with running_node("late", a) as late:
            await all_know([a, b, late])
            assert a.names == {"a", "b", "late"}
        counters = a.agent.statistics().counters
        assert counters.packets_received >= 100


async def test_member_reporting_thousands_of_nodes_blocks_no_join() -> None:
    async with running_cluster("a b rogue", config=QUICK) as (a, b, rogue):
        ghosts = [forge(f"ghost-{number}", number) for number in range(4_900)]
        news = encode_packet(GossipPacket(records=ghosts))
        for node in (a, b):
            await rogue.service.request(node.address, SUBJECT, news)
        async with running_node("late", a, config=QUICK) as late:
            await all_know([a, b, rogue, late])
        assert set(await request_full_state(a)) <= {"a", "b", "rogue", "late"}


# Listeners.


async def test_a_listener_that_raises_a_cancellation_stops_nothing() -> None:
    async with running_node("a", config=QUICK) as a:

        def fail(_change: object) -> None:
            raise asyncio.CancelledError("planted")

        a.agent.add_listener(fail)
        assert a.agent.datagram_service is not None
        a.agent.subscribe_datagrams("planted", fail)
        async with running_node("b", a, config=QUICK) as b:
            await all_know([a, b])
            assert b.agent.datagram_service is not None
            b.agent.datagram_service.send_nowait(a.address, "planted", b"")
            await b.crash()
            await a.until_removed("b")
        async with running_node("c", a, config=QUICK) as c:
            await all_know([a, c])
