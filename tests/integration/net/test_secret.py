"""Services and datagrams of a cluster with a secret, over real sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import ConfigError, ConnectionClosedError, Outcome
from postroad.net import (
    Address,
    DatagramService,
    Limits,
    MessagingService,
    ProtocolConfig,
    RawMessage,
)
from tests.support.cases import each
from tests.support.deadlines import eventually, reaches
from tests.support.net.peers import CLUSTER, nothing_left
from tests.support.net.raw_peers import both_loops
from tests.support.net.tls import Authority
from tests.support.wire.tunnel_ends import Recorders

SECRET = "correct horse battery staple"
OTHER = "another secret of some length"
LIMITS = Limits(stop_grace_s=0.5, handshake_timeout_s=2.0)


def make_service(
    name: str, secret: str | None = SECRET, version: int | None = None
) -> MessagingService:
    protocol = ProtocolConfig(version_max=version)
    return MessagingService(CLUSTER, name, limits=LIMITS, protocol=protocol, secret=secret)


@asynccontextmanager
async def running(
    client: MessagingService, server: MessagingService
) -> AsyncIterator[list[RawMessage]]:
    """Both, and what the server was told."""
    messages: list[RawMessage] = []

    def hear(message: RawMessage) -> bytes:
        messages.append(message)
        return message.payload

    async with client, server:
        server.serve("echo", hear)
        yield messages


@both_loops
async def test_services_with_one_secret_talk() -> None:
    client, server = make_service("client"), make_service("server")
    async with running(client, server) as messages:
        for payload in (b"one", bytes(1_000_000)):
            assert await client.request(server.address, "echo", payload) == payload
        assert messages[0].peer == "client"
        reply = await client.request(server.address, "echo", b"x", keep_alive=False)
        assert reply == b"x"


@each(
    (SECRET, OTHER, "has another cluster secret"),
    (SECRET, None, "'client' at 127.0.0.1:.* has none: set node.secret"),
    (None, SECRET, "'server' at 127.0.0.1:.* has none: set node.secret"),
)
async def test_secret_mismatch_is_rejected_with_reason_on_both_sides(
    server_secret: str | None,
    client_secret: str | None,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.clear()
    client, server = make_service("client", client_secret), make_service("server", server_secret)
    async with running(client, server) as messages:
        for _ in range(3):
            with pytest.raises(ConnectionClosedError, match=text) as caught:
                await client.request(server.address, "echo", b"x", timeout=5)
            assert caught.value.outcome is Outcome.NOT_SENT
            assert not caught.value.retryable
        assert messages == []
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    by_server = [
        record.getMessage() for record in warnings if "connection from" in record.getMessage()
    ]
    assert len(by_server) == 1, "it is said once"
    assert SECRET not in caplog.text
    assert OTHER not in caplog.text


@each((1,), (2,))
async def test_versions_that_cannot_prove_are_refused(version: int) -> None:
    for client, server in (
        (make_service("client", None, version), make_service("server")),
        (make_service("client"), make_service("server", None, version)),
    ):
        async with running(client, server) as messages:
            with pytest.raises(ConnectionClosedError, match="version"):
                await client.request(server.address, "echo", b"x", timeout=5)
            assert messages == []


def test_a_protocol_without_proofs_cannot_have_a_secret() -> None:
    for protocol in (ProtocolConfig(version_max=2), ProtocolConfig(profile="zeebe")):
        with pytest.raises(ConfigError, match="a secret needs version 3"):
            MessagingService(CLUSTER, "a", protocol=protocol, secret=SECRET)
    with pytest.raises(ConfigError, match="shorter than 16"):
        MessagingService(CLUSTER, "a", secret="short")


async def test_tunnel_requires_the_secret() -> None:
    for secret, is_open in ((SECRET, True), (OTHER, False), (None, False)):
        client, server = make_service("client", secret), make_service("server")
        async with client, server:
            near, far = Recorders(), Recorders()
            client.set_hello_role("satellite", None)
            server.set_hello_role("core", None)
            server.tunnels.accept(far)
            if is_open:
                tunnel = await client.tunnels.open(server.address, near, peer="server")
                tunnel.send_nowait("note", b"x")
                await reaches(partial(_payloads, far), [b"x"])
            else:
                with pytest.raises(ConnectionClosedError, match="secret"):
                    await client.tunnels.open(server.address, near)
                assert far.all == []


async def test_tls_certificate_and_secret_are_both_required(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def service(name: str, secret: str) -> MessagingService:
        return MessagingService(
            CLUSTER, name, tls=authority.tls(name), limits=LIMITS, secret=secret
        )

    async with service("client", SECRET) as client, service("server", SECRET) as server:
        server.serve("echo", lambda message: message.payload)
        assert await client.request(server.address, "echo", b"x") == b"x"
    async with service("client", OTHER) as client, service("server", SECRET) as server:
        with pytest.raises(ConnectionClosedError, match="has another cluster secret"):
            await client.request(server.address, "echo", b"x")


def _payloads(ends: Recorders) -> list[bytes]:
    return [payload for user in ends.all for payload in user.payloads]


# Datagrams.

KEYS = ClusterSecret(CLUSTER, SECRET)


@asynccontextmanager
async def listening(
    secret: ClusterSecret | None = KEYS, bind: Address | str = "127.0.0.1:0"
) -> AsyncIterator[tuple[DatagramService, list[bytes]]]:
    payloads: list[bytes] = []
    async with DatagramService(CLUSTER, "receiver", bind, secret=secret) as receiver:
        receiver.subscribe("tick", lambda message: payloads.append(message.payload))
        yield receiver, payloads


class Wire(asyncio.DatagramProtocol):
    """Stands between two sockets, and keeps what passes one way."""

    def __init__(self, sender: Address, receiver: Address) -> None:
        self._sender, self._receiver = sender, receiver
        self.recorded: list[bytes] = []
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # loops have classes of their own

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.transport.get_extra_info("sockname")[1])

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        is_there = addr[1] == self._sender.port
        if is_there:
            self.recorded.append(data)
        self.transport.sendto(data, self._receiver if is_there else self._sender)

    def replay(self, target: Address) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for data in self.recorded:
                sock.sendto(data, target)


@both_loops
async def test_sealed_datagrams_arrive_both_ways() -> None:
    async with (
        nothing_left(),
        listening() as (receiver, payloads),
        DatagramService(CLUSTER, "sender", secret=KEYS) as sender,
    ):
        back: list[bytes] = []
        sender.subscribe("tock", lambda message: back.append(message.payload))
        for payload in (b"one", b"two", bytes(60_000)):
            sender.send_nowait(receiver.address, "tick", payload)
        await eventually(lambda: payloads == [b"one", b"two", bytes(60_000)])
        await receiver.send(sender.address, "tock", b"back")
        await eventually(lambda: back == [b"back"])


async def test_a_recorded_datagram_is_never_taken_again() -> None:
    loop = asyncio.get_running_loop()
    async with listening() as (receiver, payloads):
        async with DatagramService(CLUSTER, "sender", secret=KEYS) as sender:
            transport, wire = await loop.create_datagram_endpoint(
                lambda: Wire(sender.address, receiver.address), local_addr=("127.0.0.1", 0)
            )
            with closing(transport):
                for number in range(5):
                    sender.send_nowait(wire.address, "tick", b"%d" % number)
                await eventually(lambda: len(payloads) == 5)
                refused = receiver.statistics().refused
                wire.replay(receiver.address)
                await eventually(lambda: receiver.statistics().refused == refused + 5)
        address = receiver.address
    # Nor by the next process of the node, at the same address.
    async with listening(bind=address) as (again, later):
        wire.replay(again.address)
        async with DatagramService(CLUSTER, "sender", secret=KEYS) as sender:
            sender.send_nowait(again.address, "tick", b"live")
            await eventually(lambda: later == [b"live"])
    assert len(payloads) == 5


async def test_datagrams_without_the_secret_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    strangers = (None, ClusterSecret(CLUSTER, OTHER), ClusterSecret("other", SECRET))
    async with listening() as (receiver, payloads):
        for count, secret in enumerate(strangers, 1):
            async with DatagramService(CLUSTER, "sender", secret=secret) as sender:
                await sender.send(receiver.address, "tick", b"x")
                await reaches(lambda: receiver.statistics().refused, count)
    assert payloads == []
    assert "has no proof of the cluster secret" in caplog.text
    async with (
        listening(None) as (receiver, payloads),
        DatagramService(CLUSTER, "sender", secret=KEYS) as sender,
    ):
        await sender.send(receiver.address, "tick", b"x")
        await eventually(lambda: receiver.statistics().refused == 1)
    assert "this node has none: set node.secret" in caplog.text
