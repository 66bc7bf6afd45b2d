"""Connections to other nodes: made, used, lost, and ended when there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from postroad.core import Address
from postroad.core.limits import KIB, MIB
from postroad.services.errors import BrokerDisconnectedError, QueueIsFullError
from postroad.services.kinds import Kind
from postroad.services.topics import Topics
from postroad.services.transporters import tcp, tcp_link, tcp_links
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.tcp_frames import FrameReader, encode_header
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import RawPeer, RawServer, for_ever, raw_server
from tests.support.servers.process import free_port
from tests.support.services.transporter_nodes import Recorder


@pytest.fixture(autouse=True)
def _short_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "GOODBYE_S", 0.2)


class Losses(Recorder):
    """Remembers also whether losses were expected."""

    def __init__(self) -> None:
        super().__init__()
        self.unexpected: list[bool] = []

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        self.unexpected.append(is_unexpected)
        super().node_lost(node_id, is_unexpected=is_unexpected)


@asynccontextmanager
async def connected(**options: object) -> AsyncIterator[tuple[TcpTransporter, Losses]]:
    """A node that knows nobody yet."""
    chosen = {"host": "127.0.0.1", "udp_discovery": False, **options}
    transporter = TcpTransporter(**chosen)  # type: ignore[arg-type]  # Options of many types.
    heard = Losses()
    transporter.bind(Topics("me"), heard)
    await transporter.connect()
    try:
        yield transporter, heard
    finally:
        await transporter.disconnect()


async def keep(peer: RawPeer) -> None:
    """Read until the end."""
    await peer.until_closed(60)


async def ignore(peer: RawPeer) -> None:
    """Read nothing at all."""
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # It can read as well.
    await for_ever()


def script(end: Callable[[RawPeer], Awaitable[None]]) -> Callable[[RawPeer], Awaitable[None]]:
    """Read one packet, then do something."""

    async def play(peer: RawPeer) -> None:
        await peer.take(6 + len(b"hello"))
        await end(peer)

    return play


async def hang_up(peer: RawPeer) -> None:
    await peer.close()


async def break_off(peer: RawPeer) -> None:
    peer.reset()


@pytest.mark.parametrize("end", [hang_up, break_off])
async def test_who_ends_a_connection_is_gone(end: Callable[[RawPeer], Awaitable[None]]) -> None:
    async with raw_server(script(end)) as server, connected() as (transporter, heard):
        transporter.book.configure("other", server.address)
        transporter.publish(Kind.EVENT, "other", b"hello")
        await heard.until(lambda: heard.lost_nodes, "the loss is told")
        assert (heard.lost_nodes, heard.unexpected) == (["other"], [end is break_off])
        assert not transporter.is_linked("other")
        # That is no reason to wait with the next.
        assert transporter.can_reach("other")


async def test_who_cannot_be_reached_is_gone_and_left_alone_for_a_while() -> None:
    async with raw_server(keep) as server, connected() as (transporter, heard):
        transporter.book.configure("other", Address("127.0.0.1", free_port()))
        transporter.publish(Kind.EVENT, "other", b"hello")
        await heard.until(lambda: heard.lost_nodes, "the loss is told")
        assert heard.lost_nodes == ["other"]
        assert transporter.failures("other") == 1
        assert not transporter.can_reach("other")
        for name in ("other", "nobody"):
            with pytest.raises(BrokerDisconnectedError, match=f"'{name}'"):
                transporter.publish(Kind.EVENT, name, b"hello")
        await eventually(lambda: transporter.can_reach("other"), "it may be tried again")
        transporter.publish(Kind.EVENT, "other", b"hello")
        await heard.until(lambda: len(heard.lost_nodes) == 2, "the loss is told again")
        # A sign of life ends the pause.
        transporter.see("other", server.address, is_online=False)
        transporter.publish(Kind.EVENT, "other", b"hello")
        await eventually(lambda: transporter.is_linked("other"), "there is a connection")
        assert transporter.failures("other") == 0


async def test_the_next_address_is_tried() -> None:
    async with raw_server(keep) as server, connected() as (transporter, heard):
        for host in ("127.0.0.2", "no.such.host.invalid", "x" * 300, "a..b"):
            transporter.book.describe(host[:20], host, ["127.0.0.1"], server.address.port)
            transporter.publish(Kind.EVENT, host[:20], b"hello")
            await eventually(partial(transporter.is_linked, host[:20]), "there is a connection")
        assert heard.lost_nodes == []


async def test_packets_for_all_and_for_nobody_go_nowhere() -> None:
    async with raw_server(keep) as server, connected() as (transporter, _):
        transporter.book.configure("other", server.address)
        transporter.publish(Kind.INFO, None, b"for all")
        transporter.publish(Kind.PING, None, b"for all")
        transporter.publish(Kind.INFO, "other", b"of a kind that does not travel")
        await asyncio.sleep(0)
        assert server.connections == 0


async def test_the_introduction_comes_first() -> None:
    packets: list[tuple[Kind, bytes]] = []
    reader = FrameReader(MIB)

    async def read(peer: RawPeer) -> None:
        while data := await peer.reader.read(65_536):
            packets.extend(reader.receive(data))

    async with raw_server(read) as server, connected() as (transporter, _):

        def introduce(node_id: str) -> None:
            assert node_id == "other"
            transporter.publish(Kind.GOSSIP_HELLO, node_id, b"who I am")

        transporter.introduce = introduce
        transporter.book.configure("other", server.address)
        transporter.publish(Kind.EVENT, "other", b"one")
        transporter.publish(Kind.EVENT, "other", b"two")
        await eventually(lambda: len(packets) == 3, "all came")
    assert packets == [
        (Kind.GOSSIP_HELLO, b"who I am"),
        (Kind.EVENT, b"one"),
        (Kind.EVENT, b"two"),
    ]
    assert server.connections == 1


# Too many.


@asynccontextmanager
async def servers(number: int) -> AsyncIterator[list[RawServer]]:
    if not number:
        yield []
        return
    async with raw_server(keep) as first, servers(number - 1) as others:
        yield [first, *others]


async def test_the_connection_that_is_not_used_for_longest_is_ended() -> None:
    async with servers(3) as (a, b, c), connected(connections_max=2) as (transporter, heard):
        for name, server in zip("abc", (a, b, c), strict=True):
            transporter.book.configure(name, server.address)
        for name in "ab":
            transporter.publish(Kind.EVENT, name, b"hello")
            await eventually(partial(transporter.is_linked, name), "connected")
        transporter.publish(Kind.EVENT, "a", b"again")
        # Gossip is no use.
        transporter.publish(Kind.GOSSIP_REQUEST, "b", b"gossip")
        await asyncio.sleep(0.01)
        transporter.publish(Kind.EVENT, "c", b"hello")
        await eventually(lambda: transporter.is_linked("c"), "connected")

        assert transporter.is_linked("a")
        assert not transporter.is_linked("b")
        transporter.publish(Kind.EVENT, "b", b"back")
        await eventually(lambda: transporter.is_linked("b"), "connected again")
        assert b.connections == 2
        assert not transporter.is_linked("a")
        assert heard.lost_nodes == []


async def test_only_so_many_are_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_links, "DIALS_MAX", 3)
    async with raw_server(keep) as server, connected() as (transporter, _):
        for number in range(5):
            transporter.book.configure(f"n{number}", server.address)
        for number in range(3):
            transporter.publish(Kind.EVENT, f"n{number}", b"hello")
        assert not transporter.can_reach("n3")
        with pytest.raises(BrokerDisconnectedError):
            transporter.publish(Kind.EVENT, "n3", b"hello")
        assert transporter.can_reach("n0")
        await eventually(lambda: transporter.can_reach("n3"), "those are done")


# Slow readers.


async def fill(transporter: TcpTransporter, node_id: str) -> int:
    """Publish until that is refused; returns how much was taken."""
    taken = 0
    packet = bytes(256 * KIB)
    with pytest.raises(QueueIsFullError, match=node_id):
        while taken < 128 * MIB:
            transporter.publish(Kind.EVENT, node_id, packet)
            taken += len(packet)
            await asyncio.sleep(0)
    return taken


async def test_what_waits_for_a_slow_reader_is_bounded() -> None:
    async with (
        raw_server(ignore) as slow,
        raw_server(keep) as quick,
        connected() as (transporter, heard),
    ):
        transporter.book.configure("slow", slow.address)
        transporter.book.configure("quick", quick.address)
        taken = await fill(transporter, "slow")
        assert taken >= tcp_link.WAITING_BYTES_MAX - MIB

        transporter.publish(Kind.EVENT, "quick", b"hello")
        await asyncio.wait_for(transporter.drain(), DEADLINE_S)
        with pytest.raises(QueueIsFullError):
            transporter.publish(Kind.EVENT, "slow", bytes(256 * KIB))
        # Nor does the end wait for it, or for one in a network where nobody answers: it is
        # set aside for documentation.
        transporter.book.configure("absent", Address("198.51.100.1", 4000))
        transporter.publish(Kind.EVENT, "absent", b"hello")
        await asyncio.wait_for(transporter.disconnect(), DEADLINE_S)
        assert heard.lost_nodes == []


async def test_drain_waits_for_a_slow_reader() -> None:
    may_read = asyncio.Event()
    got = 0

    async def read_late(peer: RawPeer) -> None:
        nonlocal got
        await may_read.wait()
        while data := await peer.reader.read(1 * MIB):
            got += len(data)

    async with raw_server(read_late) as server, connected() as (transporter, _):
        transporter.book.configure("other", server.address)
        packet = bytes(512 * KIB)
        sent = 0
        draining = asyncio.create_task(transporter.drain())
        async with asyncio.timeout(DEADLINE_S):
            while draining.done():
                transporter.publish(Kind.EVENT, "other", packet)
                sent += len(encode_header(Kind.EVENT, len(packet))) + len(packet)
                draining = asyncio.create_task(transporter.drain())
                await asyncio.wait([draining], timeout=0.2)
            may_read.set()
            await draining
            await eventually(lambda: got == sent, "all came")


async def test_who_reads_nothing_for_long_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_link, "SILENCE_S", 1)
    async with raw_server(ignore) as server, connected() as (transporter, heard):
        transporter.book.configure("slow", server.address)
        await fill(transporter, "slow")
        draining = asyncio.create_task(transporter.drain())
        await heard.until(lambda: heard.lost_nodes, "the loss is told")
        await asyncio.wait_for(draining, DEADLINE_S)
        assert heard.lost_nodes == ["slow"]
