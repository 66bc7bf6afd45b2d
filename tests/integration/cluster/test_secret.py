"""A cluster with a secret: nodes with the secret join, others change nothing."""

from __future__ import annotations

import socket

import pytest

from postroad.cluster import MemberState
from postroad.cluster.agent import SUBJECT
from postroad.cluster.membership import MemberRecord, gossip
from postroad.cluster.membership.members import leave_digest
from postroad.core.errors import NameConflictError
from postroad.wire import Datagram, encode_datagram, encode_preamble
from tests.support.cluster.nodes import (
    CLUSTER,
    QUICK,
    Inbox,
    all_know,
    both_transports,
    make_node,
    running_cluster,
    running_node,
    running_service,
)
from tests.support.deadlines import eventually

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
