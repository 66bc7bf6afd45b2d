"""What only the Redis transporter does: who is let in, databases, TLS, others on its channels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from postroad.core.errors import MessageTooLargeError
from postroad.core.limits import MIB
from postroad.services.kinds import Kind
from postroad.services.transporters import reconnecting
from postroad.services.transporters.redis import RedisTransporter
from tests.contract.served_transporter_behaviour import talk
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.process import free_port
from tests.support.servers.redis import redis_server, shared_redis
from tests.support.services.transporter_nodes import (
    Node,
    Nodes,
    SharedWiring,
    TlsFiles,
    nodes_of,
    posing,
    saying,
    with_user,
)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with nodes_of(SharedWiring(lambda: RedisTransporter(shared_redis().url))) as nodes:
        yield nodes


async def join(nodes: Nodes, url: str, node_id: str = "alpha", **options: Any) -> Node:
    return await nodes.join(node_id, transporter=RedisTransporter(url, **options))


@asynccontextmanager
async def other_client(url: str) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


def open_sockets() -> set[str]:
    """Those of this process."""
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.add(str(descriptor.readlink()))
    return {link for link in links if link.startswith("socket:")}


async def test_transporter_disconnected_from_a_paused_server_keeps_no_connection(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "GOODBYE_S", 0.2)
    with redis_server() as server:
        before = open_sockets()
        alpha = await join(nodes, server.url)
        server.pause()
        try:
            for _ in range(8):
                alpha.send(Kind.RESPONSE, alpha, bytes(MIB))
            await alpha.transporter.disconnect()
            await eventually(lambda: open_sockets() <= before, "all connections are closed")
        finally:
            server.resume()


# Who is let in.


async def test_a_server_that_does_not_let_everybody_in(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server("--requirepass", "p@ss") as server:
        alpha = await join(nodes, with_user(server.url, ":p%40ss"))
        await talk(alpha, alpha, b"in")
        beta = await join(
            nodes, with_user(server.url, "me:secret"), "beta", user="", password="p@ss"
        )
        await talk(alpha, beta, b"in as well")
        for wrong in (server.url, with_user(server.url, ":secret")):
            with pytest.raises(OSError, match="redis: ") as caught:
                await join(nodes, wrong, "gamma")
            assert "secret" not in f"{caught.value}{caplog.text}"


async def test_a_user_with_few_rights(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as server:
        url = with_user(server.url, "me:secret")
        mute = ("resetchannels", f"&MOL-{nodes.namespace}.*", "+@all", "-publish")
        async with other_client(server.url) as client:
            await client.execute_command("ACL", "SETUSER", "me", "on", ">secret", *mute)
            alpha = await join(nodes, url)
            for _ in range(100):
                alpha.send(Kind.INFO, None, b"forbidden")
            await client.publish(f"MOL-{nodes.namespace}.RES.alpha", b"allowed")
            await alpha.until_received(Kind.RESPONSE, b"allowed")
            await eventually(
                lambda: "refused" in caplog.text, "it is told that packets are refused"
            )
        assert alpha.heard.losses == []
        assert caplog.text.count("refused") == 1
        with pytest.raises(OSError, match=r"redis: .*channel"):
            await nodes.join("beta", transporter=RedisTransporter(url), namespace="foreign")


async def test_databases_share_their_channels(nodes: Nodes) -> None:
    alpha = await join(nodes, f"{shared_redis().url}/0")
    beta = await join(nodes, f"{shared_redis().url}/5", "beta")
    await talk(alpha, beta, b"hello")
    with pytest.raises(OSError, match=r"redis: .*out of range|redis: .*[Dd]atabase"):
        await join(nodes, f"{shared_redis().url}/9999", "gamma")


# TLS.


async def test_tls(nodes: Nodes, tmp_path: Path) -> None:
    certificates, port = TlsFiles(tmp_path), free_port()
    ca, both = certificates.ca, certificates.both
    files = ["--tls-cert-file", both, "--tls-key-file", both, "--tls-ca-cert-file", ca]
    with redis_server("--tls-port", str(port), *map(str, files)) as server:
        url = f"rediss://127.0.0.1:{port}"
        own = {"tls_ca": str(ca), "tls_cert": str(both), "tls_key": str(both)}
        alpha = await join(nodes, url, **own)
        beta = await join(nodes, server.url, "beta")
        await talk(alpha, beta, b"hello")
        large = bytes(range(256)) * 3_000
        alpha.send(Kind.RESPONSE, beta, large)
        assert await beta.until_count(Kind.RESPONSE, 1) == [large]
        with pytest.raises(OSError, match=r"redis: .*certificate"):
            await join(nodes, url, "gamma")
        # It wants to see a certificate of ours.
        with pytest.raises(OSError, match="redis: "):
            await join(nodes, url, "gamma", tls_ca=str(ca))


# What comes, and from whom.


async def test_other_clients_see_channels_and_bytes(nodes: Nodes) -> None:
    begin = f"MOL-{nodes.namespace}."
    async with other_client(shared_redis().url) as client:
        everything = client.pubsub()
        await everything.psubscribe(f"{begin}*")
        assert (await everything.get_message(timeout=DEADLINE_S))["type"] == "psubscribe"
        alpha = await nodes.join("alpha")
        alpha.send(Kind.INFO, None, b'{"ver":"5"}')
        alpha.transporter.publish(Kind.REQUEST, "b e.t", b"\0\xff\r\n")
        seen = [await everything.get_message(timeout=DEADLINE_S) for _ in range(2)]
        assert [(it["channel"].decode().removeprefix(begin), it["data"]) for it in seen] == [
            ("INFO", b'{"ver":"5"}'),
            ("REQ.b e.t", b"\0\xff\r\n"),
        ]
        # Only the channels of the node are heard.
        for channel in ("RES.alpha.more", "RES.al", "REQB.alpha", "nonsense", "RES.alpha"):
            await client.publish(f"{begin}{channel}", channel)
        await alpha.until_received(Kind.RESPONSE, b"RES.alpha")
        assert alpha.data_of(Kind.RESPONSE) == [b"RES.alpha"]
        assert {kind for kind, _ in alpha.heard.packets} <= {Kind.INFO, Kind.RESPONSE}
        await everything.aclose()


async def test_the_limit_may_be_chosen(nodes: Nodes) -> None:
    alpha = await join(nodes, shared_redis().url, packet_bytes_max=10)
    alpha.send(Kind.EVENT, alpha, bytes(10))
    await alpha.until_received(Kind.EVENT, bytes(10))
    with pytest.raises(MessageTooLargeError, match="10"):
        alpha.send(Kind.EVENT, alpha, bytes(11))


async def test_a_connection_that_the_server_ends(nodes: Nodes) -> None:
    async with other_client(shared_redis().url) as client:
        for kind in ("pubsub", "normal"):
            alpha = await nodes.join("alpha")
            await client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            await alpha.until_lost()
            await alpha.until_back()
            await talk(alpha, alpha, b"again")
            await alpha.transporter.disconnect()


async def test_somebody_else_answers(nodes: Nodes) -> None:
    async with posing("redis", saying(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as url:
        with pytest.raises(OSError, match="redis: "):
            await join(nodes, url, connect_timeout_s=2.0)
