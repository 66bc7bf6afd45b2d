"""What a node does with connections that are of no node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from postroad.core import Address
from postroad.core.limits import MIB
from postroad.services.kinds import Kind
from postroad.services.topics import Topics
from postroad.services.transporters import tcp_arrivals
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.tcp_frames import encode_header
from tests.support.net.raw_peers import RawPeer, holds_for, raw_client
from tests.support.services.transporter_nodes import Received, Recorder


def frame(data: bytes) -> bytes:
    return encode_header(Kind.EVENT, len(data)) + data


@pytest.fixture
async def heard() -> Recorder:
    return Recorder()


@pytest.fixture
async def address(heard: Recorder) -> AsyncIterator[Address]:
    """Where a node listens."""
    transporter = TcpTransporter(host="127.0.0.1", udp_discovery=False)
    transporter.bind(Topics("me"), heard)
    await transporter.connect()
    yield Address("127.0.0.1", transporter.port)
    await transporter.disconnect()


async def check_alive(peer: RawPeer, heard: Recorder, data: bytes) -> None:
    peer.send(frame(data))
    await heard.until(lambda: Received(Kind.EVENT, data) in heard.packets, "it is heard")


async def test_garbage_ends_its_own_connection(heard: Recorder, address: Address) -> None:
    async with raw_client(address) as good:
        for number, garbage in enumerate(
            (
                b"GET / HTTP/1.1\r\n\r\n",
                bytes(6),
                b"\xff" * 100,
                encode_header(Kind.EVENT, MIB + 1),
                encode_header(Kind.EVENT, 2**31 - 7),
            )
        ):
            heard.packets.clear()
            before, after = b"before %d" % number, b"after %d" % number
            async with raw_client(address) as bad:
                await check_alive(good, heard, before)
                bad.send(frame(b"still good"), garbage)
                assert await bad.until_closed() == b""
                await check_alive(good, heard, after)
            assert {packet.data for packet in heard.packets} == {before, b"still good", after}


async def test_what_is_announced_takes_no_memory(heard: Recorder, address: Address) -> None:
    async with raw_client(address) as peer:
        peer.send(encode_header(Kind.EVENT, MIB), b"x" * 10)
        peer.writer.write_eof()
        assert await peer.until_closed() == b""
    assert heard.packets == []


async def test_a_frame_may_come_in_pieces(heard: Recorder, address: Address) -> None:
    data = frame(b"piece by piece")
    async with raw_client(address) as peer:
        await peer.send_apart(*(data[at : at + 1] for at in range(len(data))))
        await heard.until(lambda: heard.packets, "it comes")
    assert heard.packets == [Received(Kind.EVENT, b"piece by piece")]


async def test_who_owes_something_for_too_long_is_closed(
    monkeypatch: pytest.MonkeyPatch, heard: Recorder
) -> None:
    monkeypatch.setattr(tcp_arrivals, "FRAME_TIMEOUT_S", 0.3)
    monkeypatch.setattr(tcp_arrivals, "_SWEEP_S", 0.05)
    transporter = TcpTransporter(host="127.0.0.1", udp_discovery=False)
    transporter.bind(Topics("me"), heard)
    await transporter.connect()
    address = Address("127.0.0.1", transporter.port)
    async with (
        raw_client(address) as idle,
        raw_client(address) as silent,
        raw_client(address) as slow,
    ):
        slow.send(frame(b"whole"), frame(b"half")[:-1])
        await check_alive(idle, heard, b"idle from now on")
        end = idle.ends()
        assert await silent.until_closed() == b""
        assert await slow.until_closed() == b""
        await holds_for(lambda: not end.done(), "who is between frames stays", 0.5)
        await check_alive(idle, heard, b"still there")
        await transporter.disconnect()
        await end


async def test_too_many_connections(
    monkeypatch: pytest.MonkeyPatch, heard: Recorder, address: Address
) -> None:
    monkeypatch.setattr(tcp_arrivals, "ARRIVALS_MAX", 1)
    async with raw_client(address) as first:
        await check_alive(first, heard, b"first")
        async with raw_client(address) as second:
            assert await second.until_closed() == b""
        await check_alive(first, heard, b"still there")


async def test_the_port_is_taken(heard: Recorder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        transporter = TcpTransporter(
            host="127.0.0.1", port=taken.getsockname()[1], udp_discovery=False
        )
        transporter.bind(Topics("me"), heard)
        with pytest.raises(OSError, match="in use"):
            await transporter.connect()
        assert not transporter.is_connected
    await transporter.connect()
    assert transporter.is_connected
    await transporter.disconnect()
    assert heard.connections == [False]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_by_default_it_listens_everywhere(heard: Recorder, host: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    speakers: list[str | None] = []
    transporter = TcpTransporter(udp_discovery=False)
    transporter.bind(Topics("me"), heard)
    received = heard.received

    def listen(kind: Kind, data: bytes, done: object = None, sender: str | None = None) -> None:
        speakers.append(transporter.speaker)
        received(kind, data)

    heard.received = listen  # type: ignore[method-assign]  # It asks who speaks.
    await transporter.connect()
    async with raw_client(Address(host, transporter.port)) as peer:
        await check_alive(peer, heard, b"hello")
    assert speakers == [host]
    assert transporter.speaker is None
    await asyncio.wait_for(transporter.disconnect(), 30)
