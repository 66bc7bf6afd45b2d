"""A cluster over mutual TLS: everything goes over TCP, and no datagram socket is opened."""

from __future__ import annotations

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
from postroad.core.errors import ConfigError, NameConflictError
from postroad.net import DatagramService
from tests.support.cluster.nodes import (
    CLUSTER,
    QUICK,
    USUAL,
    Node,
    all_know,
    make_node,
    running_node,
    running_service,
    udp_ports,
)
from tests.support.deadlines import eventually
from tests.support.net.tls import Authority


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
