"""What only the MQTT transporter does: who is let in, TLS, separators; servers that are none."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroad.core.errors import MessageTooLargeError
from postroad.services.kinds import Kind
from postroad.services.transporters import reconnecting
from postroad.services.transporters.mqtt import MqttTransporter
from postroad.services.transporters.mqtt_client import MqttClient
from postroad.services.transporters.server_address import ServerAddress
from tests.contract.served_transporter_behaviour import talk
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.mosquitto import mosquitto_server, shared_mosquitto
from tests.support.servers.process import find_server
from tests.support.services.transporter_nodes import (
    Conversation,
    Node,
    Nodes,
    SharedWiring,
    TlsFiles,
    nodes_of,
    posing,
    with_user,
)

CONNACK = b"\x20\x02\0\0"


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with nodes_of(SharedWiring(lambda: MqttTransporter(shared_mosquitto().url))) as nodes:
        yield nodes


async def join(nodes: Nodes, url: str, node_id: str = "alpha", **options: Any) -> Node:
    return await nodes.join(node_id, transporter=MqttTransporter(url, **options))


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    path = tmp_path / "passwords"
    find_server("mosquitto_passwd", "mosquitto")
    subprocess.run(["mosquitto_passwd", "-b", "-c", path, "me", "p@ss"], check=True)
    return path


async def test_a_server_that_does_not_let_everybody_in(
    nodes: Nodes, passwords: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mosquitto_server(f"allow_anonymous false\npassword_file {passwords}") as server:
        alpha = await join(nodes, with_user(server.url, "me:p%40ss"))
        beta = await join(nodes, server.url, "beta", user="me", password="p@ss")
        await talk(alpha, beta, b"in")
        for wrong in (server.url, with_user(server.url, "me:secret")):
            with pytest.raises(OSError, match="mqtt: the server does not let us in") as caught:
                await join(nodes, wrong, "gamma")
            assert "secret" not in f"{caught.value}{caplog.text}"


async def test_tls(nodes: Nodes, tmp_path: Path) -> None:
    certificates = TlsFiles(tmp_path)
    both, ca = certificates.both, certificates.ca
    files = f"certfile {both}\nkeyfile {both}\ncafile {ca}\nrequire_certificate true"
    with mosquitto_server(f"allow_anonymous true\n{files}") as server:
        url = server.url.replace("mqtt:", "mqtts:")
        context = certificates.context(mutual=True)
        alpha = await join(nodes, url, tls=context)
        beta = await join(nodes, url, "beta", tls=context)
        large = bytes(range(256)) * 3_000
        packets = [b"%d" % index + bytes(index) for index in range(500)]
        for data in (large, *packets):
            alpha.send(Kind.RESPONSE, beta, data)
        assert await beta.until_count(Kind.RESPONSE, 501) == [large, *packets]
        with pytest.raises(OSError, match=r"mqtt: .*certificate"):
            await join(nodes, url, "gamma")
        with pytest.raises(OSError, match="mqtt: "):
            await join(nodes, server.url, "gamma")
        await asyncio.to_thread(server.kill)
        await alpha.until_lost()
        await beta.until_lost()
        await asyncio.to_thread(server.start)
        await alpha.until_back()
        await beta.until_back()
        await talk(alpha, beta, b"hello again")


@pytest.mark.parametrize("separator", [".", "/"])
async def test_other_clients_see_topics_and_bytes(nodes: Nodes, separator: str) -> None:
    seen: list[tuple[str, bytes]] = []
    place = ServerAddress("127.0.0.1", shared_mosquitto().port)
    other = MqttClient(place, lambda topic, data: seen.append((topic, data)))
    try:
        await other.open(DEADLINE_S)
        await other.subscribe(["#"])
        alpha = await join(nodes, shared_mosquitto().url, topic_separator=separator)
        alpha.send(Kind.INFO, None, b'{"ver":"5"}')
        alpha.transporter.publish(Kind.REQUEST, "b.e", b"\0\xff")
        await eventually(lambda: len(seen) >= 2, "both came")
        begin = f"MOL-{nodes.namespace}{separator}"
        assert seen == [
            (f"{begin}INFO", b'{"ver":"5"}'),
            (f"{begin}REQ{separator}b.e", b"\0\xff"),
        ]
        await other.publish(f"{begin}RES{separator}alpha", b"answer")
        await alpha.until_received(Kind.RESPONSE, b"answer")
    finally:
        other.close()


async def test_the_limit_is_what_we_are_told(nodes: Nodes) -> None:
    alpha = await join(nodes, shared_mosquitto().url, packet_bytes_max=100)
    with pytest.raises(MessageTooLargeError, match="100"):
        alpha.send(Kind.EVENT, alpha, bytes(101))


async def test_to_give_up_a_place_that_does_not_answer(nodes: Nodes) -> None:
    # Nobody is there, and nobody says so: the addresses are for documentation.
    silent = MqttTransporter("mqtt://192.0.2.1", connect_timeout_s=60)
    node = nodes.make("alpha", transporter=silent)
    connecting = asyncio.create_task(node.transporter.connect())
    await asyncio.wait([connecting], timeout=0.1)
    connecting.cancel()
    await asyncio.wait([connecting], timeout=20)
    assert connecting.done()


# Servers that are none.


def answering(*answers: bytes) -> Conversation:
    """Say these, each after something was said, and no more."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for data in answers:
            await reader.read(10_000)
            writer.write(data)
        await reader.read()

    return answer


def suback(code: int) -> bytes:
    """To the first subscription, which is of fourteen topics."""
    return bytes((0x90, 16, 0, 1)) + bytes((code,)) * 14


async def test_somebody_else_answers(nodes: Nodes) -> None:
    cases: list[tuple[tuple[bytes, ...], str]] = [
        ((b"\x20\x02\0\x05",), "Not authorized"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "mqtt: "),
        ((b"\xff" * 20,), "mqtt: "),
        ((b"\x20\xff\xff\xff\xff\xff",), "mqtt: "),
        ((CONNACK, suback(0x80)), "refuses the topic"),
    ]
    for answers, reason in cases:
        async with posing("mqtt", answering(*answers)) as url:
            with pytest.raises(OSError, match=reason):
                await join(nodes, url, connect_timeout_s=1.0)


def publish(topic: bytes, data: bytes) -> bytes:
    body = len(topic).to_bytes(2) + topic + data
    return bytes((0x30, len(body))) + body


async def test_packets_of_unknown_topics_are_dropped(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "GOODBYE_S", 0.2)
    odd = [publish(topic, b"?") for topic in (b"MOL.REQ.other", b"x", b"\xff\xfe", b"$SYS")]
    known = publish(f"MOL-{nodes.namespace}.INFO".encode(), b"known")
    async with posing("mqtt", answering(CONNACK, suback(0) + b"".join(odd) + known)) as url:
        alpha = await join(nodes, url)
        await alpha.until_received(Kind.INFO, b"known")
        assert len(alpha.heard.packets) == 1
        assert caplog.text.count("unknown topic") == 1
        await alpha.transporter.disconnect()
