"""Nodes that know each other by gossip: they come, change, go, and are not fooled."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.core import Address
from postroad.services.gossip import GossipHello, GossipRequest, GossipResponse
from postroad.services.kinds import VERSION, Kind
from postroad.services.nodes import NodeDisconnected, NodeForgotten
from postroad.services.serializers import JsonSerializer
from postroad.services.transporters.tcp import TcpTransporter
from postroad.services.transporters.tcp_frames import encode_header
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import RawPeer, holds_for, raw_client, raw_server
from tests.support.servers.process import free_port
from tests.support.services.gossip_nodes import LOCAL, GossipNode, running

SLOW = {"period_s": 60.0}
"""Rounds that do not come within a test: what happens, happens at once."""


def make_urls(*names: str) -> dict[str, str]:
    return {name: f"{LOCAL}:{free_port()}" for name in names}


def make_node(name: str, urls: dict[str, str], *services: str, **options: Any) -> GossipNode:
    transporter = TcpTransporter(urls, host=LOCAL, udp_discovery=False)
    return GossipNode(name, transporter, services=services, **options)


def encode(packet: GossipHello | GossipRequest | GossipResponse) -> bytes:
    data = JsonSerializer().serialize(packet)
    return encode_header(packet.KIND, len(data)) + data


@pytest.mark.parametrize("known_to_a", [("a", "b"), ("a",)])
async def test_two_nodes_know_each_other_at_once(known_to_a: tuple[str, ...]) -> None:
    """One address is enough."""
    urls = make_urls("a", "b")
    a = make_node("a", {name: urls[name] for name in known_to_a}, "posts", **SLOW)
    b = make_node("b", urls, "users", **SLOW)
    async with running(a, b):
        await a.until_online("b", "users")
        await b.until_online("a", "posts")
        node = a.registry.node("b")
        assert node is not None
        assert node.info.port == b.transporter.port
        assert a.comings("b") == b.comings("a") == 1


async def test_nodes_hear_of_others_by_gossip() -> None:
    urls = make_urls("a", "b", "c")
    a = make_node("a", urls, "posts")
    b = make_node("b", {"a": urls["a"], "b": urls["b"]}, "users")
    c = make_node("c", {"a": urls["a"], "c": urls["c"]}, "mails")
    async with running(a, b, c):
        await b.until_online("c", "mails")
        await c.until_online("b", "users")
        b.send(GossipHello(host="x", port=1, ver=VERSION, sender="b"), "c")
        await eventually(lambda: b.transporter.is_linked("c"), "they speak to each other")


async def test_many_nodes_with_few_connections() -> None:
    names = [f"n{number}" for number in range(8)]
    urls = make_urls(*names)
    nodes = []
    for name in names:
        known = {it: urls[it] for it in ("n0", name)}
        transporter = TcpTransporter(known, host=LOCAL, udp_discovery=False, connections_max=2)
        nodes.append(GossipNode(name, transporter, services=[f"of-{name}"]))
    async with running(*nodes):
        for node in nodes:
            for other in names:
                if other != node.node_id:
                    await node.until_online(other, f"of-{other}")
        nodes[3].offer("news")
        for node in nodes:
            if node is not nodes[3]:
                await node.until_online("n3", "news")
        assert [node.losses(name) for node in nodes for name in names] == [0] * len(names) ** 2


async def test_a_change_is_known_at_once() -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", urls, "posts", **SLOW), make_node("b", urls, **SLOW)
    async with running(a, b):
        await b.until_online("a", "posts")
        a.offer("users")
        a.offer("mails")
        await b.until_online("a", "posts", "users", "mails")
        pushed = [it for it in a.sent if isinstance(it[1], GossipResponse)]
        before = len(pushed)
        await b.until_online("a", "mails")
        assert len([it for it in a.sent if isinstance(it[1], GossipResponse)]) == before
        await a.presence.withdraw()
        await b.until(lambda: b.is_online("a") and not b.services_of("a"), "nothing is offered")


async def test_measurements_are_told() -> None:
    urls = make_urls("a", "b")
    busy = [20.4]
    a, b = make_node("a", urls, cpu=lambda: busy[0], period_s=0.05), make_node("b", urls)
    async with running(a, b):
        await b.until_online("a")
        busy[0] = 120.0

        def cpu() -> float | None:
            node = b.registry.node("a")
            return node.cpu if node is not None else None

        await b.until(lambda: cpu() == 100, "it is known")


async def test_a_goodbye_is_no_surprise() -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", urls, **SLOW), make_node("b", urls, **SLOW)
    async with running(a, b):
        await b.until_online("a")
        await a.until_online("b")
        ping = JsonSerializer().deserialize(
            Kind.PING, b'{"time":1,"id":"x","ver":"5","sender":"a"}'
        )
        for sender, receiver in ((a, b), (b, a)):
            sender.send(ping, receiver.node_id)
            await receiver.until(lambda it=receiver: it.packets, "it came")  # type: ignore[misc]
        await a.stop()
        await b.until_offline("a")
        assert NodeDisconnected("a", False) in b.changes


@pytest.mark.parametrize("is_at_another_port", [False, True])
async def test_a_node_comes_back(is_at_another_port: bool) -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", urls, "posts"), make_node("b", urls, "users")
    async with running(b):
        await a.start()
        await b.until_online("a", "posts")
        await a.stop()
        await b.until_offline("a")
        again = make_urls("a") if is_at_another_port else {}
        a = make_node("a", {**urls, **again}, "mails")
        async with running(a):
            await b.until_online("a", "mails")
            await a.until_online("b", "users")
            assert b.services_of("a") == {"mails"}
            assert b.comings("a") == 2
            # And there is a way to where it is now.
            b.send(GossipHello(host="x", port=1, ver=VERSION, sender="b"), "a")
            await eventually(lambda: b.transporter.is_linked("a"), "b speaks to a")


async def test_a_node_that_was_only_cut_off_comes_back() -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", urls, "posts"), make_node("b", urls, "users")
    async with running(a, b):
        await a.until_online("b")
        await b.until_online("a")
        b.node_lost("a", is_unexpected=True)
        assert not b.is_online("a")
        await b.until_online("a", "posts")
        assert a.losses("b") == 0


async def test_what_only_one_cannot_reach_stays_online_for_others() -> None:
    urls = make_urls("a", "b", "c")
    a, b, c = (make_node(name, urls, f"of-{name}") for name in "abc")
    async with running(a, b, c):
        for node, other in ((a, "b"), (a, "c"), (b, "a"), (b, "c"), (c, "a"), (c, "b")):
            await node.until_online(other, f"of-{other}")
        await eventually(lambda: b.transporter.is_linked("c"), "b speaks to c")
        before = c.registry.local.seq
        a.node_lost("c", is_unexpected=True)
        await a.until_online("c")
        assert c.registry.local.seq > before
        assert b.losses("c") == 0


async def test_a_node_that_counts_anew_is_noticed() -> None:
    """Without a connection, as with nodes of the original system in large clusters."""
    urls = make_urls("a", "b")
    b = make_node("b", {"b": urls["b"]}, "users")
    async with running(b):
        a = make_node("a", urls, "posts", clock=lambda: 1.0)
        await a.start()
        await b.until_online("a", "posts")
        await a.stop()
        await b.until_offline("a")
        a = make_node("a", urls, "mails", clock=lambda: 0.01)
        async with running(a):
            await b.until_online("a", "mails")
            assert a.registry.local.seq > 1_000


async def test_a_former_life_is_outrun_though_nobody_saw_its_end() -> None:
    urls = make_urls("a", "b")
    a = make_node("a", urls, "posts", clock=lambda: 10)
    b = make_node("b", urls, "users")
    async with running(a):
        stale = GossipResponse(
            online={"b": [{"services": [], "instanceID": "former", "seq": 2**40}]},
            ver=VERSION,
            sender="b",
        )
        a.presence.received(stale)
        assert a.is_online("b")
        async with running(b):
            await a.until_online("b", "users")
            assert b.registry.local.seq > 2**40


# Names.


def hello(sender: str, port: int, host: str = "elsewhere") -> GossipHello:
    return GossipHello(host=host, port=port, ver=VERSION, sender=sender)


async def test_nobody_can_draw_what_is_for_another_to_itself() -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", urls, **SLOW), make_node("b", urls, **SLOW)
    async with running(a, b):
        await a.until_online("b")
        await eventually(lambda: a.transporter.is_linked("b"), "a speaks to b")
        before = a.transporter.book.addresses("b")
        async with raw_client(Address(LOCAL, a.transporter.port)) as liar:
            # Also from the same host: there is a connection already.
            liar.send(encode(hello("b", 1)), encode(hello("marker", 1)))
            await eventually(lambda: "marker" in a.transporter.book, "it is heard")
        assert a.transporter.book.addresses("b") == before
        a.presence._discover("b", Address("10.0.0.66", 1))
        assert a.transporter.book.addresses("b") == before


async def test_who_restarts_at_another_port_is_found_there_when_it_is_missed() -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", urls, **SLOW), make_node("b", urls, "users", **SLOW)
    async with running(a):
        await b.start()
        await a.until_online("b", "users")
        await eventually(lambda: a.transporter.is_linked("b"), "a speaks to b")
        async with raw_client(Address(LOCAL, a.transporter.port)) as early:
            early.send(encode(hello("b", 4321)), encode(hello("marker", 1)))
            await eventually(lambda: "marker" in a.transporter.book, "it is heard")
        await b.stop()
        await a.until_offline("b")
        await eventually(
            lambda: a.transporter.book.addresses("b")[0] == Address(LOCAL, 4321), "it is sought"
        )


async def test_the_source_counts_and_not_what_is_said_of_it() -> None:
    got: list[bytes] = []

    async def listen(peer: RawPeer) -> None:
        got.append(await peer.take(6))
        await peer.until_closed(60)

    a = make_node("a", make_urls("a"), **SLOW)
    async with (
        running(a),
        raw_server(listen) as server,
        raw_client(Address(LOCAL, a.transporter.port)) as peer,
    ):
        peer.send(encode(hello("b", server.address.port, host="no.such.host.invalid")))
        await eventually(lambda: got, "it is asked")
    assert got[0][5] == 8, "the first packet is a hello"


async def test_who_was_never_introduced_is_not_answered() -> None:
    a = make_node("a", make_urls("a"), **SLOW)
    async with running(a):
        a.presence.received(GossipRequest(online={"x": [1, 1, 1]}, ver=VERSION, sender="x"))
        a.presence.received(hello("a", 1))
        assert a.sent == []
        assert len(a.transporter.book) == 0


async def test_two_processes_with_one_name(caplog: pytest.LogCaptureFixture) -> None:
    urls = make_urls("a", "b")
    rivals = [make_node("b", {**urls, **make_urls("b")}, f"of-{it}") for it in range(2)]
    a = make_node("a", urls)
    async with running(a, *rivals):
        await a.until_online("b")
        await eventually(lambda: "do two processes have this name" in caplog.text, "it is told")


# Forgetting.


async def test_who_never_was_there_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.services.gossip_presence.FAILURES_MAX", 2)
    urls = make_urls("a", "configured")
    a = make_node("a", urls, period_s=0.05)
    async with running(a):
        a.presence.received(hello("b", free_port(), host=LOCAL))
        assert "b" in a.transporter.book
        await eventually(lambda: "b" not in a.transporter.book, "it is given up")
        assert "configured" in a.transporter.book


async def test_who_is_gone_for_long_is_forgotten() -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", {"a": urls["a"]}, period_s=0.05), make_node("b", urls)
    async with running(a):
        async with running(b):
            await a.until_online("b")
        await a.until_offline("b")
        node = a.registry.node("b")
        assert node is not None
        assert node.offline_since is not None
        await holds_for(lambda: a.registry.node("b"), "it is remembered", 0.2)
        node.offline_since -= a.registry.config.clean_offline_s
        await a.until(lambda: NodeForgotten("b") in a.changes, "it is forgotten")
        assert "b" not in a.transporter.book


async def test_nothing_is_said_after_a_goodbye() -> None:
    urls = make_urls("a", "b")
    a, b = make_node("a", urls), make_node("b", urls)
    async with running(b, a):
        await a.until_online("b")
        await a.presence.leave()
        said = len(a.sent)
        a.presence.received(GossipRequest(ver=VERSION, sender="b"))
        a.presence.services_changed()
        await holds_for(lambda: len(a.sent) == said, "it is silent", 0.3)
