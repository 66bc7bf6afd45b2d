"""Members that leave, crash and come back, over real sockets."""

from __future__ import annotations

import pytest

from postroad.cluster import MembershipEventType, MemberState
from postroad.net import Address
from tests.support.cluster.nodes import (
    QUICK,
    all_know,
    both_transports,
    running_cluster,
    running_node,
)


@both_transports
async def test_leaving_is_seen_at_once_by_all(datagrams: bool) -> None:
    async with running_cluster("a b c d e", datagrams=datagrams) as nodes:
        *others, leaver = nodes
        await leaver.agent.stop()
        for node in others:
            change = await node.until_removed("e")
            assert change.member.state is MemberState.LEFT
            assert node.names == {"a", "b", "c", "d"}
            assert not node.reported(MembershipEventType.REACHABILITY)


@both_transports
async def test_crash_is_noticed(datagrams: bool) -> None:
    async with running_cluster("a b c d", config=QUICK, datagrams=datagrams) as nodes:
        *others, lost = nodes
        await lost.crash()
        for node in others:
            change = await node.until_removed("d")
            assert change.member.state is MemberState.DEAD
            assert change.previous is not None and change.previous.state is MemberState.SUSPECT
            assert node.names == {"a", "b", "c"}


@pytest.mark.parametrize("is_noticed", [True, False], ids=["after removal", "at once"])
@pytest.mark.parametrize("same_port", [True, False], ids=["same port", "another port"])
async def test_restart_under_the_same_name(same_port: bool, is_noticed: bool) -> None:
    async with running_cluster("a b c", config=QUICK) as (a, b, c):
        before = c.agent.local_member
        await c.crash()
        if is_noticed:
            await a.until_removed("c")
            await b.until_removed("c")
        bind = c.address if same_port else Address("127.0.0.1", 0)
        async with running_node("c", a, b, bind=bind, config=QUICK) as back:
            for node in (a, b):
                await node.until_meets(back.agent.local_member)
                assert node.see("c").address == back.address
                assert node.see("c").is_reachable
                kinds = [change.kind for change in node.changes if change.member.name == "c"]
                assert kinds.count(MembershipEventType.ADDED) == 2
                assert kinds.count(MembershipEventType.REMOVED) == 1
                removal = node.reported(MembershipEventType.REMOVED, "c")[0]
                assert removal.member.instance == before.instance
            await all_know([a, b, back])
            back.communication.serve("who", lambda _message, _member: b"new")
            assert await a.communication.request("c", "who", b"") == b"new"


async def test_node_that_leaves_may_come_back() -> None:
    async with running_cluster("a b") as (a, b):
        await b.stop()
        await a.until_removed("b")
        async with running_node("b", a, bind=b.address) as back:
            await all_know([a, back])


async def test_member_both_ways_among_others(caplog: pytest.LogCaptureFixture) -> None:
    """As where a firewall blocks UDP: TCP keeps the member alive, and it is told."""
    async with (
        running_cluster("a b", config=QUICK) as (a, b),
        running_node("c", a, config=QUICK, datagrams=False) as c,
    ):
        await all_know([a, b, c])
        for node in (a, b):
            await node.eventually(
                lambda node: node.agent.statistics().counters.probes_by_stream >= 3
            )
            assert not node.reported(MembershipEventType.REMOVED)
    assert "acknowledges over TCP but not over UDP; are datagrams blocked?" in caplog.text
