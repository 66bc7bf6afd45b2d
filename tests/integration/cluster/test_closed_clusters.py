"""Clusters with a secret, or with mutual TLS and so without datagrams: others change nothing."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postroad.cluster import (
    ClusterAgent,
    ClusterTopics,
    Member,
    MembershipConfig,
    MembershipEventType,
    MemberState,
)
from postroad.cluster.agent import SUBJECT
from postroad.cluster.membership import MemberRecord, gossip
from postroad.cluster.membership.members import leave_digest
from postroad.core.errors import ConfigError, NameConflictError
from postroad.net import DatagramService
from postroad.wire import Datagram, encode_datagram, encode_preamble
from tests.support.cluster.nodes import (
    CLUSTER,
    QUICK,
    USUAL,
    Inbox,
    Node,
    all_know,
    both_transports,
    make_node,
    running_cluster,
    running_node,
    running_service,
    udp_ports,
)
from tests.support.deadlines import eventually
from tests.support.net.tls import Authority

SECRET = "correct horse battery staple"
OTHER = "another secret of some length"


@both_transports
async def test_nodes_with_the_secret_form_a_cluster(datagrams: bool) -> None:
    async with running_cluster("a b c", secret=SECRET, datagrams=datagrams) as nodes:
        a, b, c = nodes
        a.agent.set_properties({"role": "core"})
        await b.until(lambda _: b.see("a").properties == {"role": "core"}, "a has a role")
        inbox = Inbox(c)
        await a.communication.send("c", "note", b"quick", reliable=False)
        await inbox.until((b"quick", "a"))
        assert (a.agent.datagram_service is not None) is datagrams
        assert a.agent.statistics().counters.probes_by_stream == 0


async def test_a_crash_and_a_return_at_the_same_address_are_noticed() -> None:
    async with running_cluster("a b", secret=SECRET, config=QUICK) as (a, b):
        address, old = b.address, a.see("b")
        await b.crash()
        async with running_node("b", a, secret=SECRET, config=QUICK, bind=address) as again:
            await a.until_meets(again.agent.local_member)
            assert a.see("b").instance != old.instance
            await all_know([a, again])


@pytest.mark.parametrize("secret", [None, OTHER])
async def test_node_without_the_secret_stays_alone_and_logs_why(
    secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_node("a", secret=SECRET, config=QUICK) as a,
        running_node("b", a, secret=secret, config=QUICK) as b,
    ):
        assert (a.names, b.names) == ({"a"}, {"b"})
        await eventually(lambda: "cannot connect to" in caplog.text)
    assert "node.secret" in caplog.text
    assert SECRET not in caplog.text


async def test_datagrams_of_an_unknown_sender_change_nothing() -> None:
    async with running_cluster("a b", secret=SECRET, config=QUICK) as (a, b):
        forged = MemberRecord(
            "ghost", 7, "127.0.0.1", 9, 1, MemberState.ALIVE, 0, leave_digest(b"x"), {}
        )
        packets: list[gossip.MembershipPacket] = [
            gossip.ProbePacket(nonce=1, name="ghost", instance=7),
            gossip.GossipPacket(records=[forged]),
        ]
        assert a.agent.datagram_service is not None
        refused = a.agent.datagram_service.statistics().refused
        received = a.agent.statistics().counters.rejected
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for packet in packets:
                plain = Datagram("ghost", "127.0.0.1", 9, SUBJECT, gossip.encode_packet(packet))
                sock.sendto(encode_datagram(encode_preamble(CLUSTER), plain), a.address)
        await eventually(
            lambda: (
                a.agent.datagram_service is not None
                and a.agent.datagram_service.statistics().refused >= refused + 2
            )
        )
        assert a.names == b.names == {"a", "b"}
        assert a.agent.statistics().counters.rejected == received


async def test_second_node_of_a_name_is_rejected_with_an_error() -> None:
    async with running_cluster("a b", secret=SECRET, config=QUICK) as (a, b):
        async with running_service("b", secret=SECRET) as service:
            with pytest.raises(NameConflictError, match="'b'"):
                await make_node(service, a, config=QUICK).agent.start()
        assert a.names == b.names == {"a", "b"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


@asynccontextmanager
async def secure_cluster(
    authority: Authority, config: MembershipConfig = USUAL
) -> AsyncIterator[list[Node]]:
    async with (
        running_node("a", tls=authority.tls("a"), config=config) as a,
        running_node("b", a, tls=authority.tls("b"), config=config) as b,
        running_node("c", b, tls=authority.tls("c"), config=config) as c,
    ):
        await all_know([a, b, c])
        yield [a, b, c]


async def test_no_datagram_socket_is_opened(authority: Authority) -> None:
    async with secure_cluster(authority) as nodes:
        for node in nodes:
            assert node.agent.datagram_service is None
            assert node.address.port not in udp_ports()


async def test_datagrams_are_rejected(authority: Authority) -> None:
    async with running_service("a", tls=authority.tls("a")) as service:
        with pytest.raises(ConfigError, match="would bypass TLS"):
            ClusterAgent(service, datagrams=True)


async def test_whole_life(authority: Authority) -> None:
    async with secure_cluster(authority, QUICK) as (a, b, c):
        a.agent.set_properties({"large": "x" * 10_000})
        for node in (b, c):
            await node.until(lambda node: node.see("a").properties, "a changed")
        # Long enough for probes to have gone both ways.
        await eventually(
            lambda: all(node.agent.statistics().counters.probes >= 4 for node in (a, b, c))
        )
        assert not a.reported(MembershipEventType.REMOVED)
        await c.crash()
        for node in (a, b):
            assert (await node.until_removed("c")).member.state is MemberState.DEAD
        await b.agent.stop()
        assert (await a.until_removed("b")).member.state is MemberState.LEFT


async def test_messages(authority: Authority) -> None:
    async with secure_cluster(authority) as (a, b, c):
        notes: list[tuple[bytes, str]] = []

        def note(message: bytes, member: Member) -> None:
            notes.append((message, member.name))

        b.communication.serve("who", lambda _message, member: member.name.encode())
        b.communication.subscribe("note", note)
        assert await a.communication.request("b", "who", b"") == b"a"
        await a.communication.send("b", "note", b"1", reliable=False)
        await eventually(lambda: notes == [(b"1", "a")])
        ClusterTopics(c.communication).subscribe("news", note)
        topics = ClusterTopics(a.communication)
        await a.until(lambda _: topics.subscribers("news"), "c wants news")
        assert await topics.publish("news", b"2") == {}
        await eventually(lambda: (b"2", "a") in notes)


@pytest.mark.parametrize("asks_holder", [True, False], ids=["asks holder", "asks another"])
async def test_second_node_of_a_name_is_rejected(
    authority: Authority, asks_holder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        secure_cluster(authority) as (a, b, c),
        running_service("a", tls=authority.tls("a")) as service,
    ):
        second = make_node(service, a if asks_holder else b)
        with pytest.raises(NameConflictError, match=str(a.address)):
            await second.agent.start()
        assert f"another live node at {service.address} is named 'a'" in caplog.text
        assert a.agent.failure is None
        await all_know([a, b, c])


async def test_nodes_without_a_certificate_cannot_join(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "two")
    async with (
        secure_cluster(authority) as (a, b, c),
        running_node("d", a, tls=other.tls("d"), config=QUICK) as d,
        running_node("e", a, config=QUICK) as e,
        DatagramService(CLUSTER, "f") as f,
    ):
        for _ in range(20):
            await f.send(a.address, "cluster.membership", b"anything")
        await eventually(lambda: a.service.statistics().tls_failures >= 2)
        assert d.names == {"d"}
        assert e.names == {"e"}
        await all_know([a, b, c])
