"""What transporters do that give a packet to one of many nodes by themselves.

They are used together with TransporterBehaviour, which brings the nodes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from tests.support.services.transporter_nodes import Nodes, numbered, until_shared


class BalancedBehaviour:
    """For those that give a packet to one of many nodes by themselves."""

    async def test_each_packet_goes_to_one_of_a_queue(self, nodes: Nodes) -> None:
        alpha, beta, gamma = await nodes.join_all(["alpha", "beta", "gamma"])
        topic = alpha.action("math.add")
        for node in (beta, gamma):
            await node.transporter.listen_balanced([topic])
        packets = numbered(200)
        for data in packets:
            alpha.send_balanced(topic, data)
        came = await until_shared(200, Kind.REQUEST, beta, gamma)
        assert Counter(came) == Counter(packets)
        assert beta.heard.packets
        assert gamma.heard.packets
        assert alpha.heard.packets == []

    async def test_each_queue_gets_each_packet(self, nodes: Nodes) -> None:
        alpha, beta, gamma = await nodes.join_all(["alpha", "beta", "gamma"])
        mail, audit = alpha.event("mail", "user.created"), alpha.event("audit", "user.created")
        await beta.transporter.listen_balanced([mail, audit])
        await gamma.transporter.listen_balanced([mail])
        for data in numbered(50):
            alpha.send_balanced(mail, b"mail " + data)
            alpha.send_balanced(audit, b"audit " + data)
        came = Counter(await until_shared(100, Kind.EVENT, beta, gamma))
        groups = (b"mail ", b"audit ")
        assert came == {group + data: 1 for data in numbered(50) for group in groups}
        assert not [data for data in gamma.data_of(Kind.EVENT) if data.startswith(b"audit")]

    async def test_a_node_may_take_its_own(self, nodes: Nodes) -> None:
        alpha = await nodes.join("alpha")
        topic = alpha.action("math.add")
        await alpha.transporter.listen_balanced([topic])
        alpha.send_balanced(topic, b"mine")
        await alpha.until_received(Kind.REQUEST, b"mine")

    async def test_to_listen_replaces_what_was_listened_to(self, nodes: Nodes) -> None:
        alpha, beta, gamma = await nodes.join_all(["alpha", "beta", "gamma"])
        old, kept, new = (alpha.action(f"math.{name}") for name in ("old", "kept", "new"))
        await gamma.transporter.listen_balanced([old])
        await beta.transporter.listen_balanced([old, kept])
        await beta.transporter.listen_balanced([kept, new])
        for data in numbered(20):
            alpha.send_balanced(old, b"old " + data)
            alpha.send_balanced(kept, b"kept " + data)
            alpha.send_balanced(new, b"new " + data)
        at_gamma = await gamma.until_count(Kind.REQUEST, 20)
        at_beta = await beta.until_count(Kind.REQUEST, 40)
        assert Counter(at_gamma) == {b"old " + data: 1 for data in numbered(20)}
        assert Counter(at_beta) == {
            word + data: 1 for data in numbered(20) for word in (b"kept ", b"new ")
        }

    async def test_to_listen_to_nothing(self, nodes: Nodes) -> None:
        alpha, beta, gamma = await nodes.join_all(["alpha", "beta", "gamma"])
        topic = alpha.action("math.add")
        for node in (beta, gamma):
            await node.transporter.listen_balanced([topic])
        await beta.transporter.listen_balanced([])
        for data in numbered(20):
            alpha.send_balanced(topic, data)
        assert Counter(await gamma.until_count(Kind.REQUEST, 20)) == Counter(numbered(20))
        assert beta.heard.packets == []

    async def test_who_leaves_gets_no_more(self, nodes: Nodes) -> None:
        alpha, beta, gamma = await nodes.join_all(["alpha", "beta", "gamma"])
        topic = alpha.action("math.add")
        for node in (beta, gamma):
            await node.transporter.listen_balanced([topic])
        await beta.transporter.disconnect()
        for data in numbered(20):
            alpha.send_balanced(topic, data)
        assert Counter(await gamma.until_count(Kind.REQUEST, 20)) == Counter(numbered(20))
        assert beta.heard.packets == []

    async def test_a_listener_to_a_queue_that_is_slow(self, nodes: Nodes) -> None:
        alpha = await nodes.join("alpha")
        slow = await nodes.join("beta", slowness_s=0.001)
        topic = alpha.action("math.add")
        await slow.transporter.listen_balanced([topic])
        for data in numbered(500):
            alpha.send_balanced(topic, data)
        assert Counter(await slow.until_count(Kind.REQUEST, 500)) == Counter(numbered(500))

    async def test_nothing_is_sent_to_a_queue_without_connection(self, nodes: Nodes) -> None:
        node = nodes.make("alpha")
        with pytest.raises(BrokerDisconnectedError):
            node.send_balanced(node.action("math.add"), b"early")
        await node.transporter.connect()
        await node.transporter.disconnect()
        with pytest.raises(BrokerDisconnectedError):
            node.send_balanced(node.action("math.add"), b"late")
