"""What only the NATS transporter does: several servers, who is let in, TLS, patterns, others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

from postroad.core.errors import ConfigError, MessageTooLargeError
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.transporters import reconnecting
from postroad.services.transporters.nats import NatsTransporter
from postroad.services.transporters.nats_protocol import LINE_BYTES_MAX
from tests.contract.served_transporter_behaviour import talk
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.nats import nats_server, shared_nats
from tests.support.servers.process import free_port
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

INFO = b'INFO {"max_payload":1000}\r\n'


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with nodes_of(SharedWiring(lambda: NatsTransporter(shared_nats().url))) as nodes:
        yield nodes


async def join(nodes: Nodes, url: str, node_id: str = "alpha", **options: Any) -> Node:
    return await nodes.join(node_id, transporter=NatsTransporter(url, **options))


# Who is let in.


@pytest.mark.parametrize(
    ("config", "user"),
    [
        ('user: "me", password: "p@ss,word"', "me:p%40ss%2Cword"),
        ('token: "t@ken"', "t%40ken"),
    ],
)
async def test_a_server_that_does_not_let_everybody_in(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, config: str, user: str
) -> None:
    with nats_server(f"authorization {{ {config} }}") as server:
        alpha = await join(nodes, with_user(server.url, user))
        await talk(alpha, alpha, b"in")
        for wrong in (server.url, with_user(server.url, "me:secret"), with_user(server.url, "se")):
            with pytest.raises(OSError, match="Authorization Violation") as caught:
                await join(nodes, wrong, "beta")
            assert "secret" not in f"{caught.value}{caplog.text}"


async def test_what_a_server_does_not_allow_harms_nothing_else(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    permissions = 'permissions { publish: { deny: ["*.PING", "*.PING.>"] } }'
    users = f'authorization {{ users: [{{ user: "me", password: "pass", {permissions} }}] }}'
    with nats_server(users) as server:
        alpha = await join(nodes, with_user(server.url, "me:pass"))
        for _ in range(100):
            alpha.send(Kind.PING, None, b"forbidden")
        await talk(alpha, alpha, b"allowed")
        assert alpha.heard.losses == []
        assert alpha.data_of(Kind.PING) == []
        assert caplog.text.count("Permissions Violation") == 1
        server.kill()
        await alpha.until_lost()
        assert "Permissions" not in alpha.heard.losses[0]


# TLS.


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def tls_config(files: TlsFiles, *, verify: bool = False) -> str:
    paths = f'cert_file: "{files.both}", key_file: "{files.both}", ca_file: "{files.ca}"'
    return f"tls {{ {paths}, verify: {str(verify).lower()} }}"


async def test_tls(nodes: Nodes, files: TlsFiles) -> None:
    with nats_server(tls_config(files)) as server:
        url = server.url.replace("nats:", "tls:")
        alpha = await join(nodes, url, tls=files.context())
        # Who is not told that there is TLS hears it from the server.
        beta = await join(nodes, server.url, "beta", tls=files.context())
        await talk(alpha, beta, b"hello")
        large = bytes(range(256)) * 3_000
        alpha.send(Kind.RESPONSE, beta, large)
        assert await beta.until_count(Kind.RESPONSE, 1) == [large]
        for untrusting in (url, server.url):
            with pytest.raises(OSError, match=r"nats: .*certificate"):
                await join(nodes, untrusting, "gamma")
        server.kill()
        await alpha.until_lost()
        await beta.until_lost()
        server.start()
        await alpha.until_back()
        await beta.until_back()
        await talk(alpha, beta, b"hello again")


async def test_mutual_tls(nodes: Nodes, files: TlsFiles) -> None:
    with nats_server(tls_config(files, verify=True)) as server:
        alpha = await join(nodes, server.url, tls=files.context(mutual=True))
        await talk(alpha, alpha, b"known")
        with pytest.raises(OSError, match="nats: "):
            await join(nodes, server.url, "beta", tls=files.context())


async def test_no_tls_is_not_put_up_with(nodes: Nodes, files: TlsFiles) -> None:
    url = with_user(shared_nats().url, "me:secret")
    for wanted in (url.replace("nats:", "tls:"), url):
        with pytest.raises(OSError, match="offers no TLS"):
            await join(nodes, wanted, tls=files.context())


# Several servers.


async def test_servers_that_are_gone_are_passed_over_and_named(nodes: Nodes) -> None:
    gone = f"nats://127.0.0.1:{free_port()}"
    alpha = await join(nodes, f"{gone},{shared_nats().url}")
    beta = await join(nodes, f"{shared_nats().url},{gone}", "beta")
    await talk(alpha, beta, b"hello")

    ports = [free_port(), free_port()]
    url = ",".join(f"me:secret@127.0.0.1:{port}" for port in ports)
    with pytest.raises(OSError, match=f"127.0.0.1:{ports[0]}: .*127.0.0.1:{ports[1]}: ") as caught:
        await join(nodes, url)
    assert "secret" not in str(caught.value)


async def test_the_next_server_is_taken_when_one_is_lost(nodes: Nodes) -> None:
    with nats_server() as first, nats_server() as second:
        both = f"{first.url},{second.url}"
        alpha, beta = await join(nodes, both), await join(nodes, both, "beta")
        first.kill()
        await alpha.until_back()
        await beta.until_back()
        await talk(alpha, beta, b"there")


# What comes, and from whom.


async def test_the_limit_is_the_server_s(nodes: Nodes) -> None:
    with nats_server("max_payload: 5000") as server:
        transporter = NatsTransporter(server.url)
        assert transporter.packet_bytes_max is None
        alpha = await nodes.join("alpha", transporter=transporter)
        assert transporter.packet_bytes_max == 5_000
        alpha.send(Kind.EVENT, alpha, bytes(5_000))
        await alpha.until_received(Kind.EVENT, bytes(5_000))
        with pytest.raises(MessageTooLargeError, match="5000"):
            alpha.send(Kind.EVENT, alpha, bytes(5_001))


async def test_other_clients_see_subjects_and_bytes(nodes: Nodes) -> None:
    other = await nats.connect(shared_nats().url)
    try:
        everything = await other.subscribe(f"MOL-{nodes.namespace}.>")
        await other.flush()
        alpha = await nodes.join("alpha")
        alpha.send(Kind.INFO, None, b'{"ver":"5"}')
        alpha.transporter.publish(Kind.REQUEST, "b.e", b"\0\xff")
        alpha.send_balanced(alpha.action("math.add"), b"sum")
        alpha.send_balanced(alpha.event("mail", "user.created"), b"who")
        seen = [await everything.next_msg(timeout=DEADLINE_S) for _ in range(4)]
        begin = f"MOL-{nodes.namespace}."
        assert [(it.subject.removeprefix(begin), it.data, it.reply) for it in seen] == [
            ("INFO", b'{"ver":"5"}', ""),
            ("REQ.b.e", b"\0\xff", ""),
            ("REQB.math.add", b"sum", ""),
            ("EVENTB.mail.user.created", b"who", ""),
        ]
        # Neither headers nor a subject to answer to are in the way.
        await other.publish(f"{begin}RES.alpha", b"bare")
        await other.publish(f"{begin}RES.alpha", b"more", reply="there", headers={"a": "b"})
        assert await alpha.until_count(Kind.RESPONSE, 2) == [b"bare", b"more"]
    finally:
        await other.close()


async def test_patterns_of_events(nodes: Nodes) -> None:
    alpha, beta = await nodes.join_all(["alpha", "beta"])
    patterns = ("user.*", "order.**", "exact", "**.odd")
    await beta.transporter.listen_balanced(beta.event("mail", it) for it in patterns)
    heard = ("user.created", "order.a.b", "order.c", "exact", "x.odd")
    for name in (*heard, "user.a.b", "user", "exactly"):
        alpha.send_balanced(alpha.event("mail", name), name.encode())
    await talk(alpha, beta, b"all sent")
    # The last pattern hears everything, whatever follows its stars: the broker looks once more.
    assert {*beta.data_of(Kind.EVENT)} >= {name.encode() for name in heard}

    await beta.transporter.listen_balanced(beta.event("mail", it) for it in patterns[:3])
    before = len(beta.data_of(Kind.EVENT))
    for name in (*heard[:-1], "user.a.b", "user", "exactly"):
        alpha.send_balanced(alpha.event("mail", name), b"again " + name.encode())
    await talk(alpha, beta, b"all sent again")
    again = beta.data_of(Kind.EVENT)[before:]
    assert sorted(again) == sorted(b"again " + name.encode() for name in heard[:-1])


async def test_a_name_that_cannot_be_heard_keeps_no_other_from_it(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    alpha = await nodes.join("alpha")
    good, bad = alpha.action("math.add"), alpha.action("math add")
    odd, star = alpha.event("mail", "us?r"), alpha.action("math.*")
    await alpha.transporter.listen_balanced([bad, good, odd, star])
    alpha.send_balanced(good, b"sum")
    await alpha.until_received(Kind.REQUEST, b"sum")
    assert "math add" in caplog.text
    assert "us?r" in caplog.text
    assert "math.*" in caplog.text
    for topic in (bad, star):
        with pytest.raises(ConfigError):
            alpha.send_balanced(topic, b"nowhere")


# Servers that are none.


async def test_nothing_is_heard_that_was_said_before_tls(nodes: Nodes, files: TlsFiles) -> None:
    whole, begun, cut = b"MSG MOL.INFO 1 4\r\nevil\r\n", b"MSG MOL.INFO 1 400\r\nevil", b"MSG MOL"
    for more in (whole, begun, cut):
        async with posing("nats", saying(b'INFO {"tls_required":true}\r\n' + more)) as url:
            with pytest.raises(OSError, match=r"before TLS|let us in"):
                await join(nodes, url, tls=files.context(), connect_timeout_s=2.0)


async def test_somebody_else_answers(nodes: Nodes) -> None:
    for data, reason in (
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "nonsense"),
        (b"-ERR 'maximum connections exceeded'\r\n", "maximum connections exceeded"),
        (INFO + b"MSG a 1 99999999999\r\n", "nonsense"),
        (b"x" * (LINE_BYTES_MAX + 2), "too long"),
        (INFO, "closed the connection"),
    ):

        async def say(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes = data
        ) -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()
            await reader.read()

        async with posing("nats", say) as url:
            with pytest.raises(OSError, match=reason):
                await join(nodes, url)


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let a client in; returns when its second question, that it is subscribed, is answered."""
    writer.write(INFO)
    for _ in range(2):
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
    await writer.drain()


async def test_who_throws_us_out_is_asked_more_and_more_seldom(nodes: Nodes) -> None:
    async with posing("nats", greet) as url:
        loop = asyncio.get_running_loop()
        started = loop.time()
        alpha = await join(nodes, url)
        await alpha.until_lost(5)
        # Half of 0.1 s, of 0.2 s, of 0.4 s and of 0.8 s at least.
        assert loop.time() - started >= 0.74
        await alpha.transporter.disconnect()


async def test_nonsense_later_is_a_loss(nodes: Nodes) -> None:
    async def begin_well(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(b"MSG x 1 4\r\ngood\r\nMSG x 999 4\r\nnone\r\nnonsense\r\n")
        await reader.read()

    async with posing("nats", begin_well) as url:
        alpha = await join(nodes, url)
        await alpha.until_lost()
        assert "nonsense" in alpha.heard.losses[0]
        assert [packet.data for packet in alpha.heard.packets][:1] == [b"good"]
        await alpha.transporter.disconnect()


async def test_pings_are_answered_and_limits_may_change(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "GOODBYE_S", 0.2)
    answered = asyncio.Event()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(b'PING\r\nINFO {"max_payload":10,"ldm":true}\r\n')
        await reader.readuntil(b"PONG\r\n")
        answered.set()
        await reader.read()

    async with posing("nats", ask) as url:
        alpha = await join(nodes, url)
        await asyncio.wait_for(answered.wait(), DEADLINE_S)

        def is_refused() -> bool:
            try:
                alpha.send(Kind.EVENT, alpha, bytes(11))
            except MessageTooLargeError:
                return True
            return False

        await eventually(is_refused, "the new limit is known")
        assert alpha.transporter.packet_bytes_max == 10
        await alpha.transporter.disconnect()


async def test_what_is_sent_on_a_connection_that_just_ended(nodes: Nodes) -> None:
    with nats_server() as server:
        alpha = await join(nodes, server.url)
        server.kill()

        async def send_on() -> None:
            while True:
                alpha.send(Kind.EVENT, alpha, b"lost")
                await asyncio.sleep(0)

        with pytest.raises(BrokerDisconnectedError):
            await asyncio.wait_for(send_on(), DEADLINE_S)
        await alpha.until_lost()
