"""What only the AMQP transporter does: packets that come again, queues as others have them, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiormq
import pytest
import trustme
from aiormq.connection import Connection
from aiormq.exceptions import ChannelPreconditionFailed

from postroad.services.kinds import Kind
from postroad.services.topics import BROADCAST
from postroad.services.transporters.amqp import AmqpTransporter
from tests.contract.served_transporter_behaviour import talk
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.process import free_port
from tests.support.servers.rabbitmq import shared_rabbitmq
from tests.support.services.gate import gate_to
from tests.support.services.transporter_nodes import (
    Node,
    Nodes,
    Recorder,
    SharedWiring,
    nodes_of,
    numbered,
    posing,
    saying,
)

LASTING = {"arguments": {"x-expires": 120_000}}
FLEETING = {"auto_delete": True}


class Keeping(Recorder):
    """Leaves it to the test when something is done."""

    def __init__(self) -> None:
        super().__init__()
        self.undone: list[Callable[[], None]] = []

    def received(
        self,
        kind: Kind,
        data: bytes,
        done: Callable[[], None] | None = None,
        sender: str | None = None,
    ) -> None:
        if done is not None:
            self.undone.append(done)
        super().received(kind, data)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    url = shared_rabbitmq().url
    async with nodes_of(SharedWiring(lambda: AmqpTransporter(url))) as nodes:
        yield nodes


async def join(nodes: Nodes, url: str, node_id: str = "alpha", **options: Any) -> Node:
    return await nodes.join(node_id, transporter=AmqpTransporter(url, **options))


async def join_keeping(nodes: Nodes, node_id: str, **options: Any) -> tuple[Node, Keeping]:
    transporter = AmqpTransporter(shared_rabbitmq().url, **options)
    node = nodes.make(node_id, transporter=transporter)
    keeping = node.heard = Keeping()
    transporter.bind(node.topics, keeping)
    await transporter.connect()
    return node, keeping


@pytest.fixture
async def other() -> AsyncIterator[Any]:
    """A channel of somebody else."""
    connection = await aiormq.connect(shared_rabbitmq().url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


# What comes again.


async def test_requests_come_again_until_they_are_done(nodes: Nodes) -> None:
    alpha = await nodes.join("alpha")
    first, keeping = await join_keeping(nodes, "beta")
    for data in numbered(4):
        alpha.send(Kind.REQUEST, first, data)
    await first.until_count(Kind.REQUEST, 4)
    keeping.undone[0]()
    keeping.undone[2]()
    await first.transporter.disconnect()
    # Too late, and harmless.
    keeping.undone[1]()

    second = await nodes.join("beta")
    await second.until_count(Kind.REQUEST, 2)
    await talk(alpha, second, b"more")
    assert second.data_of(Kind.REQUEST) == [b"packet 1", b"packet 3", b"more"]
    await second.transporter.disconnect()
    third = await nodes.join("beta")
    await talk(alpha, third, b"all is done")
    assert third.data_of(Kind.REQUEST) == [b"all is done"]


async def test_events_and_answers_come_once(nodes: Nodes) -> None:
    alpha = await nodes.join("alpha")
    first, keeping = await join_keeping(nodes, "beta")
    for kind in (Kind.EVENT, Kind.RESPONSE):
        alpha.send(kind, first, b"once")
        await first.until_received(kind, b"once")
    assert keeping.undone == []
    await first.transporter.disconnect()
    second = await nodes.join("beta")
    await talk(alpha, second, b"again")
    assert second.data_of(Kind.EVENT) == second.data_of(Kind.RESPONSE) == []


@pytest.mark.parametrize("kind", [Kind.REQUEST, Kind.EVENT])
async def test_what_is_balanced_comes_again_elsewhere(nodes: Nodes, kind: Kind) -> None:
    alpha, gamma = await nodes.join_all(["alpha", "gamma"])
    beta, keeping = await join_keeping(nodes, "beta")
    is_request = kind is Kind.REQUEST
    topic = alpha.action("math.add") if is_request else alpha.event("mail", "user.created")
    await beta.transporter.listen_balanced([topic])
    for data in numbered(3):
        alpha.send_balanced(topic, data)
    await beta.until_count(kind, 3)
    keeping.undone[1]()
    await gamma.transporter.listen_balanced([topic])
    await beta.transporter.disconnect()
    assert sorted(await gamma.until_count(kind, 2)) == [b"packet 0", b"packet 2"]


async def test_what_is_not_listened_to_any_more_can_still_be_done(nodes: Nodes) -> None:
    alpha, gamma = await nodes.join_all(["alpha", "gamma"])
    beta, keeping = await join_keeping(nodes, "beta")
    topic = alpha.action("math.add")
    await beta.transporter.listen_balanced([topic])
    alpha.send_balanced(topic, b"mine")
    await beta.until_received(Kind.REQUEST, b"mine")
    await beta.transporter.listen_balanced([])
    await gamma.transporter.listen_balanced([topic])
    keeping.undone[0]()
    await beta.transporter.disconnect()
    alpha.send_balanced(topic, b"next")
    assert await gamma.until_count(Kind.REQUEST, 1) == [b"next"]


async def test_balanced_requests_wait_for_a_node(nodes: Nodes) -> None:
    alpha = await nodes.join("alpha")
    topic = alpha.action("math.add")
    await alpha.transporter.listen_balanced([topic])
    await alpha.transporter.listen_balanced([])
    alpha.send_balanced(topic, b"waiting")
    await talk(alpha, alpha, b"sent")
    beta = await nodes.join("beta")
    await beta.transporter.listen_balanced([topic])
    await beta.until_received(Kind.REQUEST, b"waiting")


async def test_no_more_come_than_are_wanted_at_a_time(nodes: Nodes) -> None:
    alpha = await nodes.join("alpha")
    beta, keeping = await join_keeping(nodes, "beta", prefetch=2)
    for data in numbered(5):
        alpha.send(Kind.REQUEST, beta, data)
    await beta.until_count(Kind.REQUEST, 2)
    # What is sent later passes those that wait.
    alpha.send(Kind.EVENT, beta, b"later")
    await beta.until_received(Kind.EVENT, b"later")
    assert len(keeping.undone) == 2
    for turn in range(5):
        await beta.until_count(Kind.REQUEST, turn + 1)
        keeping.undone[turn]()
    assert await beta.until_count(Kind.REQUEST, 5) == numbered(5)


# Queues.


def moleculer_queue(kind: Kind) -> dict[str, Any]:
    return LASTING if kind in (Kind.EVENT, Kind.REQUEST, Kind.RESPONSE) else FLEETING


async def test_others_may_declare_the_same(nodes: Nodes, other: Any) -> None:
    alpha = await nodes.join("alpha")
    action, event = alpha.action("math.add"), alpha.event("mail", "user.created")
    await alpha.transporter.listen_balanced([action, event])
    for topic in alpha.topics.subscriptions():
        kind = alpha.topics.parse(topic).kind
        queue = alpha.topics.name_of(kind, "alpha")
        await other.queue_declare(queue, durable=True, **moleculer_queue(kind))
    for kind in BROADCAST:
        exchange = alpha.topics.name_of(kind)
        await other.exchange_declare(exchange, exchange_type="fanout", durable=True)
    await other.queue_declare(action.name, durable=True)
    await other.queue_declare(event.name, durable=True, **LASTING)
    with pytest.raises(ChannelPreconditionFailed):
        await other.queue_declare(action.name, durable=True, **LASTING)


async def test_a_queue_that_others_declared_differently_is_named(nodes: Nodes, other: Any) -> None:
    queues = [f"MOL-{nodes.namespace}.REQ.{node_id}" for node_id in ("alpha", "beta")]
    for queue in queues:
        await other.queue_declare(queue, durable=True)
    with pytest.raises(OSError, match=f"PRECONDITION_FAILED.*x-expires.*{queues[0]}"):
        await nodes.join("alpha")
    beta = await join(nodes, shared_rabbitmq().url, "beta", queue_expires_s=None)
    await talk(beta, beta, b"agreed")


async def test_a_queue_that_is_taken_away_comes_back(nodes: Nodes, other: Any) -> None:
    alpha, beta = await nodes.join_all(["alpha", "beta"])
    await other.queue_delete(f"MOL-{nodes.namespace}.REQ.beta")
    await beta.until_lost()
    await beta.until_back()
    await talk(alpha, beta, b"again")
    assert alpha.heard.losses == []


async def test_an_exchange_that_is_taken_away_comes_back(nodes: Nodes, other: Any) -> None:
    alpha = await nodes.join("alpha")
    await other.exchange_delete(f"MOL-{nodes.namespace}.INFO")
    alpha.send(Kind.INFO, None, b"lost")
    await alpha.until_lost()
    await alpha.until_back()
    alpha.send(Kind.INFO, None, b"found")
    await alpha.until_received(Kind.INFO, b"found")


@pytest.mark.slow
async def test_a_server_that_only_sends_packets_is_there(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After four seconds without a sign of life, instead of six, a server would be given up.
    monkeypatch.setattr(Connection, "HEARTBEAT_GRACE_MULTIPLIER", 2)
    alpha = await nodes.join("alpha")
    beta = await join(nodes, shared_rabbitmq().url, "beta", heartbeat_s=1)
    loop = asyncio.get_running_loop()
    end = loop.time() + 5.0
    while loop.time() < end:
        alpha.send(Kind.EVENT, beta, b"alive")
        await asyncio.sleep(0.1)
    await talk(alpha, beta, b"still there")
    assert beta.heard.losses == []


# Who is let in, where, and how.


def with_user(user: str, vhost: str = "") -> str:
    return f"amqp://{user}@127.0.0.1:{shared_rabbitmq().port}/{vhost}"


async def test_who_is_not_let_in(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    alpha = await join(nodes, with_user("guest:guest", "%2F"))
    await talk(alpha, alpha, b"in")
    beta = await join(nodes, f"amqp://127.0.0.1:{shared_rabbitmq().port}", "beta")
    await talk(alpha, beta, b"in as a guest")
    for wrong in (with_user("me:secret"), with_user("guest:secret")):
        with pytest.raises(OSError, match=r"amqp: .*ACCESS_REFUSED") as caught:
            await join(nodes, wrong, "gamma")
        assert "secret" not in f"{caught.value}{caplog.text}"
    with pytest.raises(OSError, match=r"amqp: .*elsewhere"):
        await join(nodes, with_user("guest:guest", "elsewhere"), "gamma")


async def test_servers_that_are_gone_are_passed_over(nodes: Nodes) -> None:
    gone = f"amqp://me:secret@127.0.0.1:{free_port()}"
    alpha = await join(nodes, f"{gone};{shared_rabbitmq().url}")
    await talk(alpha, alpha, b"there")
    with pytest.raises(OSError, match=r"127\.0\.0\.1:.*; 127\.0\.0\.1:") as caught:
        await join(nodes, f"{gone};{gone}", "beta")
    assert "secret" not in str(caught.value)


async def test_tls(nodes: Nodes) -> None:
    authority = trustme.CA()
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with gate_to(shared_rabbitmq().port, server_side) as gate:
        url = f"amqps://127.0.0.1:{gate.port}"
        alpha = await join(nodes, url, tls=context)
        beta = await nodes.join("beta")
        await talk(alpha, beta, b"hello")
        large = bytes(range(256)) * 3_000
        beta.send(Kind.RESPONSE, alpha, large)
        assert await alpha.until_count(Kind.RESPONSE, 1) == [large]
        with pytest.raises(OSError, match=r"amqp: .*certificate"):
            await join(nodes, url, "gamma")
        await alpha.transporter.disconnect()


# Servers that are none.


async def test_somebody_else_answers(nodes: Nodes) -> None:
    for data in (
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\0\0\x09\x01",
        b"\xff" * 100,
        b"\x01\0\0\0\0\0\x04\0\x0a\0\x0a\xce",
        b"\x08\0\0\0\0\0\0\xce",
        b"",
    ):
        async with posing("amqp", saying(data)) as url:
            with pytest.raises(OSError, match="amqp: "):
                await asyncio.wait_for(join(nodes, url, connect_timeout_s=0.5), DEADLINE_S)
