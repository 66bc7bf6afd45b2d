"""Nodes of services in domains of cells: what becomes of them when domains come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from postroad.cells import CellDomain
from postroad.core.errors import ConfigError, UsageError
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.topics import Topics
from postroad.services.transporters import cells_peers
from postroad.services.transporters.cells import CellsTransporter, DomainOptions
from postroad.services.transporters.cells_lanes import NodeLane
from tests.support.cells.nodes import Domains
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import holds_for
from tests.support.net.tls import Authority
from tests.support.servers.process import free_port
from tests.support.services.transporter_nodes import Node, Recorder


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are missed earlier than usual."""
    monkeypatch.setattr(cells_peers, "SILENCE_S", 0.05)
    monkeypatch.setattr(cells_peers, "GONE_S", 0.3)


@asynccontextmanager
async def joined(
    node_id: str, where: CellsTransporter | CellDomain | str | None
) -> AsyncIterator[Node]:
    """A node that is connected."""
    transporter = where if isinstance(where, CellsTransporter) else CellsTransporter(where)
    node = Node(node_id, transporter, Topics(node_id), Recorder())
    await node.transporter.connect()
    try:
        yield node
    finally:
        await node.transporter.disconnect()


@asynccontextmanager
async def acquainted(domains: Domains, **places: str) -> AsyncIterator[list[Node]]:
    """Nodes, each by the name of its domain, that have heard each other."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(joined(node_id, domains[place]))
            for node_id, place in places.items()
        ]
        for node in nodes:
            node.send(Kind.INFO, None, node.node_id.encode())
        for node in nodes:
            others = [it.node_id.encode() for it in nodes if it is not node]
            await node.until_received(Kind.INFO, *others)
        yield nodes


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Domains, Node, Node]]:
    """Two of them in satellites of one core."""
    async with Domains(1, 2) as domains, acquainted(domains, alpha="S1", beta="S2") as nodes:
        alpha, beta = nodes
        yield domains, alpha, beta


async def until_lost(node: Node, *node_ids: str) -> None:
    await node.heard.until(lambda: node.heard.lost_nodes == list(node_ids), f"lost {node_ids}")


def lane_to(node: Node, node_id: str) -> NodeLane:
    assert isinstance(node.transporter, CellsTransporter)
    assert node.transporter._session is not None
    return node.transporter._session._peers.get(node_id)


async def until_found(node: Node, node_id: str) -> None:
    """Wait until a silent node was looked for, and found, twice."""
    lane = lane_to(node, node_id)
    heard = lane.heard
    await eventually(lambda: lane.heard >= heard + 2)


# Nodes that are gone.


@pytest.mark.parametrize(("asking", "asked"), [("S1", "S2"), ("C1", "S2"), ("S1", "C1")])
async def test_a_node_whose_domain_is_gone_is_lost(asking: str, asked: str) -> None:
    async with (
        Domains(2, 2) as domains,
        acquainted(domains, alpha=asking, beta=asked) as [alpha, beta],
    ):
        await domains[asked].stop()
        alpha.send(Kind.REQUEST, beta, b"anybody there?")
        await until_lost(alpha, "beta")
        assert alpha.heard.losses == []
        assert beta.heard.losses == [f"cells: domain {asked} stops"]


async def test_a_node_that_left_its_domain_is_lost() -> None:
    async with (
        Domains(1, 2) as domains,
        acquainted(domains, alpha="S1", beta="S2", gamma="S2") as [alpha, beta, gamma],
    ):
        await beta.transporter.disconnect()
        alpha.send(Kind.REQUEST, beta, b"anybody there?")
        alpha.send(Kind.REQUEST, gamma, b"and you?")
        await until_lost(alpha, "beta")
        await until_found(alpha, "gamma")
        assert alpha.heard.lost_nodes == ["beta"]


async def test_a_node_that_says_nothing_is_lost_only_when_it_dies() -> None:
    async with two() as (domains, alpha, beta):
        for kind in (Kind.EVENT, Kind.RESPONSE, Kind.PONG):
            alpha.send(kind, beta, b"no answer needed")
        assert not lane_to(alpha, "beta").is_asked
        alpha.send(Kind.REQUEST, beta, b"take your time")
        await until_found(alpha, "beta")
        assert alpha.heard.lost_nodes == []
        beta.send(Kind.HEARTBEAT, None, b"still at it")
        await alpha.until_received(Kind.HEARTBEAT, b"still at it")
        await domains["S2"].stop()
        await until_lost(alpha, "beta")


async def test_nobody_is_watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_peers, "WATCH_S", 0.2)
    async with two() as (_, alpha, beta):
        lane = lane_to(alpha, "beta")
        alpha.send(Kind.REQUEST, beta, b"take your time")
        await eventually(lambda: lane.watched_until > 0.0)
        await eventually(lambda: asyncio.get_running_loop().time() > lane.watched_until + 0.1)
        heard = lane.heard
        await holds_for(lambda: lane.heard == heard, "nobody looks for it", 0.3)


async def test_a_core_that_starts_again_costs_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_peers, "GONE_S", 5.0)
    async with two() as (domains, alpha, beta):
        await domains["C1"].stop()
        for node in (alpha, beta):
            await node.until_lost()
            with pytest.raises(BrokerDisconnectedError):
                node.send(Kind.REQUEST, alpha, b"nowhere")
        await domains.start("C1")
        await alpha.until_back()
        alpha.send(Kind.REQUEST, beta, b"still there?")
        await beta.until_back()
        await until_found(alpha, "beta")
        assert alpha.heard.lost_nodes == beta.heard.lost_nodes == []
        beta.send(Kind.RESPONSE, alpha, b"yes")
        await alpha.until_received(Kind.RESPONSE, b"yes")


async def test_a_lost_node_may_come_back_elsewhere() -> None:
    async with (
        Domains(1, 3) as domains,
        acquainted(domains, alpha="S1", beta="S2") as [alpha, beta],
    ):
        await domains["S2"].stop()
        alpha.send(Kind.REQUEST, beta, b"anybody there?")
        await until_lost(alpha, "beta")
        async with joined("beta", domains["S3"]) as beta:
            beta.send(Kind.INFO, None, b"here I am")
            await alpha.until_received(Kind.INFO, b"here I am")
            alpha.send(Kind.REQUEST, beta, b"welcome")
            await beta.until_received(Kind.REQUEST, b"welcome")


async def test_a_node_that_moves_gets_its_packets_there() -> None:
    async with (
        Domains(2, 3) as domains,
        acquainted(domains, alpha="S1", beta="S2") as [alpha, beta],
    ):
        await beta.transporter.disconnect()
        async with joined("beta", domains["S3"]) as moved:

            def is_known() -> bool:
                # It is looked for where it was before: somebody else may say that it moved.
                moved.send(Kind.DISCOVER, alpha, b"from elsewhere")
                return b"from elsewhere" in alpha.data_of(Kind.DISCOVER)

            await eventually(is_known)
            assert alpha.heard.lost_nodes == ["beta"]
            alpha.send(Kind.INFO, moved, b"found")
            await moved.until_received(Kind.INFO, b"found")
        assert beta.data_of(Kind.INFO) == [b"alpha"]


# Domains that are gone, or never there.


@pytest.mark.parametrize("name", ["C1", "S1"])
async def test_a_domain_that_stops_is_a_lost_connection(name: str) -> None:
    async with Domains(1, 1) as domains, joined("alpha", domains[name]) as alpha:
        await domains[name].stop()
        assert alpha.heard.losses == [f"cells: domain {name} stops"]
        assert alpha.heard.connections == [False]
        with pytest.raises(BrokerDisconnectedError):
            alpha.send(Kind.EVENT, alpha, b"nowhere")
        await asyncio.wait_for(alpha.transporter.drain(), DEADLINE_S)
        with pytest.raises(OSError, match="stopped"):
            async with joined("beta", domains[name]):
                raise AssertionError


async def test_a_satellite_without_cores_is_alone_and_connected() -> None:
    async with (
        Domains(1, 1, reach={"S1": []}) as domains,
        acquainted(domains, alpha="S1", beta="S1") as [alpha, beta],
    ):
        alpha.send(Kind.REQUEST, beta, b"next to me")
        await beta.until_received(Kind.REQUEST, b"next to me")


async def test_a_node_is_in_a_domain_once() -> None:
    async with Domains(1, 1) as domains, joined("alpha", domains["S1"]) as alpha:
        with pytest.raises(ConfigError, match="already"):
            async with joined("alpha", domains["S1"]):
                raise AssertionError
        with pytest.raises(UsageError, match="already"):
            await alpha.transporter.connect()
        assert alpha.transporter.is_connected
        alpha.send(Kind.EVENT, alpha, b"I am the one")
        await alpha.until_received(Kind.EVENT, b"I am the one")


# Domains that are made for nodes.


async def test_a_node_may_be_a_core_by_its_name_but_not_two() -> None:
    url = f"cells://127.0.0.1:{free_port()}/alpha"
    async with joined("alpha", url) as alpha, joined("beta", url) as beta:
        beta.send(Kind.REQUEST, alpha, b"core?")
        await alpha.until_received(Kind.REQUEST, b"core?")
        alpha.send(Kind.RESPONSE, beta, b"yes")
        await beta.until_received(Kind.RESPONSE, b"yes")
        with pytest.raises(OSError, match="cells: cannot listen"):
            async with joined("alpha", url):
                raise AssertionError


async def test_domains_with_certificates(tmp_path: Path) -> None:
    url = f"cells://127.0.0.1:{free_port()}/alpha"
    authority = Authority(tmp_path)
    alpha, beta = [
        CellsTransporter(url, options=DomainOptions(tls=authority.tls(it)))
        for it in ("alpha", "beta")
    ]
    async with joined("alpha", alpha) as core, joined("beta", beta) as node:
        node.send(Kind.REQUEST, core, b"in secret")
        await core.until_received(Kind.REQUEST, b"in secret")
        stranger = CellsTransporter(url, connect_timeout_s=0.5)
        with pytest.raises(OSError, match="cells: no core can be reached; alpha: "):
            async with joined("gamma", stranger):
                raise AssertionError


async def test_the_domain_of_a_process_is_there_while_it_is_used() -> None:
    for _ in range(2):
        async with joined("alpha", None) as alpha:
            async with joined("beta", None) as beta:
                alpha.send(Kind.EVENT, beta, b"hello")
                assert beta.heard.packets == [], "it came before it was sent"
                await beta.until_received(Kind.EVENT, b"hello")
            alpha.send(Kind.EVENT, alpha, b"alone")
            await alpha.until_received(Kind.EVENT, b"alone")
