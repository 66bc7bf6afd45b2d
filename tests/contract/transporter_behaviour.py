"""What every transporter does, whatever it is made of. Each kind inherits what applies to it.

A class for a kind brings the fixture `wiring`, and `served_wiring` if there is a server between
the nodes. Which of the classes below it inherits is not its choice: it must be those that its
transporter's flags ask for, and a test looks at that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import pytest

from postroad.core.errors import MessageTooLargeError
from postroad.core.limits import KIB, MIB
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.topics import BROADCAST
from tests.contract.balanced_transporter_behaviour import BalancedBehaviour
from tests.contract.served_transporter_behaviour import BalancedServedBehaviour, ServedBehaviour
from tests.support.deadlines import DEADLINE_S
from tests.support.services.transporter_nodes import (
    NODE_IDS,
    Node,
    Nodes,
    Wiring,
    nodes_of,
    numbered,
)

TARGETED = (
    Kind.EVENT,
    Kind.EVENT_ACK,
    Kind.STREAM_PROGRESS,
    Kind.REQUEST,
    Kind.RESPONSE,
    Kind.DISCOVER,
    Kind.INFO,
    Kind.PING,
    Kind.PONG,
)
ALL_BYTES = bytes(range(256))
SIZES = (0, 1, 2, 255, 4 * KIB, 64 * KIB + 1, MIB - 64 * KIB)
COMMANDS = (
    b"\r\n",
    b"\r\nPING\r\n",
    b"MSG MOL.EVENT.beta 1 0\r\n\r\n",
    b"$-1\r\n*1\r\n",
    b"\xff" * 100,
    b"\0" * 100,
    b'{"ver":"5","sender":"alpha"}',
)
"""What servers say and are told."""


async def send_all(sender: Node, kind: Kind, to: Node, packets: Sequence[bytes]) -> None:
    """As fast as the transporter likes it."""
    for data in packets:
        sender.send(kind, to, data)
        await sender.transporter.drain()


class TransporterBehaviour:
    """For everybody."""

    targeted: ClassVar[tuple[Kind, ...]] = TARGETED
    """The kinds of packets that go to a single node."""
    broadcast: ClassVar[tuple[Kind, ...]] = BROADCAST
    """The kinds that go to all. A class without must not inherit BroadcastBehaviour."""

    @pytest.fixture
    async def nodes(self, wiring: Wiring) -> AsyncIterator[Nodes]:
        async with nodes_of(wiring) as nodes:
            yield nodes

    async def test_all_that_applies_is_tested(self, nodes: Nodes) -> None:
        node = await nodes.join("alpha")
        balances = node.transporter.balances
        is_served = hasattr(self, "served_wiring")
        assert isinstance(self, BalancedBehaviour) == balances
        assert isinstance(self, BroadcastBehaviour) == bool(self.broadcast)
        assert isinstance(self, LimitBehaviour) == (node.transporter.packet_bytes_max is not None)
        assert isinstance(self, ServedBehaviour) == is_served
        assert isinstance(self, BalancedServedBehaviour) == (balances and is_served)

    # Coming and going.

    async def test_the_listener_is_told_of_the_connection_and_not_of_its_end(
        self, nodes: Nodes
    ) -> None:
        node = nodes.make("alpha")
        await node.transporter.disconnect()
        assert not node.transporter.is_connected
        assert repr(node.transporter).endswith(" not connected>")
        with pytest.raises(BrokerDisconnectedError):
            node.transporter.publish(Kind.EVENT, "beta", b"early")

        await node.transporter.connect()
        assert node.transporter.is_connected
        assert node.transporter.name
        assert repr(node.transporter).endswith(" connected>")
        assert node.heard.connections == [False]

        for _ in range(2):
            await node.transporter.disconnect()
            assert not node.transporter.is_connected
            with pytest.raises(BrokerDisconnectedError):
                node.transporter.publish(Kind.EVENT, "beta", b"late")
        assert node.heard.connections == [False]
        assert node.heard.losses == []

    async def test_disconnect_may_be_called_twice_at_a_time(self, nodes: Nodes) -> None:
        node, other = await nodes.join_all(["alpha", "beta"])
        node.send(Kind.EVENT, other, b"last words")
        await asyncio.gather(node.transporter.disconnect(), node.transporter.disconnect())
        await other.until_received(Kind.EVENT, b"last words")

    async def test_to_give_up_connecting(self, nodes: Nodes) -> None:
        node = nodes.make("alpha")
        connecting = asyncio.create_task(node.transporter.connect())
        await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting], timeout=DEADLINE_S)
        await node.transporter.disconnect()

        assert connecting.done()
        assert not node.transporter.is_connected

    async def test_nothing_comes_after_disconnect(self, nodes: Nodes) -> None:
        sender, gone, other = await nodes.join_all(["alpha", "beta", "gamma"])
        await gone.transporter.disconnect()
        for node in (gone, other):
            sender.send(Kind.EVENT, node, b"anybody there?")
        await other.until_received(Kind.EVENT, b"anybody there?")
        assert gone.heard.packets == []

    async def test_disconnect_sends_what_was_published(self, nodes: Nodes) -> None:
        sender, receiver = await nodes.join_all(["alpha", "beta"])
        packets = numbered(500)
        for data in packets:
            sender.send(Kind.EVENT, receiver, data)
        await sender.transporter.disconnect()
        assert await receiver.until_count(Kind.EVENT, 500) == packets

    # To whom packets go.

    async def test_packets_for_one_node_come_there_only(self, nodes: Nodes) -> None:
        alpha, beta, gamma = await nodes.join_all(["alpha", "beta", "gamma"])
        for kind in self.targeted:
            alpha.send(kind, beta, b"for beta")
            alpha.send(kind, gamma, b"for gamma")
        for kind in self.targeted:
            await beta.until_received(kind, b"for beta")
            await gamma.until_received(kind, b"for gamma")
        assert Counter(beta.heard.packets) == {(kind, b"for beta"): 1 for kind in self.targeted}
        assert Counter(gamma.heard.packets) == {(kind, b"for gamma"): 1 for kind in self.targeted}
        assert alpha.heard.packets == []

    async def test_a_name_with_dots(self, nodes: Nodes) -> None:
        delta, alpha = await nodes.join_all(["d.el-ta_4", "alpha"])
        alpha.send(Kind.REQUEST, delta, b"there")
        await delta.until_received(Kind.REQUEST, b"there")
        delta.send(Kind.RESPONSE, alpha, b"and back")
        await alpha.until_received(Kind.RESPONSE, b"and back")

    async def test_a_packet_for_nobody_harms_nobody(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        alpha.transporter.publish(Kind.EVENT, "gamma", b"nobody")
        alpha.send(Kind.EVENT, beta, b"somebody")
        await beta.until_received(Kind.EVENT, b"somebody")
        assert alpha.heard.losses == []

    # What comes.

    async def test_a_packet_comes_as_it_was(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        for number, size in enumerate(SIZES, 1):
            data = (ALL_BYTES * (size // 256 + 1))[:size]
            alpha.send(Kind.RESPONSE, beta, data)
            assert (await beta.until_count(Kind.RESPONSE, number))[-1] == data, size

    async def test_no_packet_is_a_command(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        for number, data in enumerate(COMMANDS):
            alpha.send(Kind.EVENT, beta, data)
            await beta.until_count(Kind.EVENT, 2 * number + 1)
            alpha.send(Kind.EVENT, beta, b"after")
            came = await beta.until_count(Kind.EVENT, 2 * number + 2)
            assert came[-2:] == [data, b"after"], data
        assert alpha.heard.losses == beta.heard.losses == []

    async def test_packets_keep_their_order(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        packets = numbered(3_000)
        for data in packets:
            alpha.send(Kind.REQUEST, beta, data)
        came = await beta.until_count(Kind.REQUEST, len(packets))
        assert Counter(came) == Counter(packets)
        assert came == packets or not alpha.transporter.keeps_order

    async def test_packets_of_all_sizes_keep_their_order(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        packets = [b"%d:" % index + b"x" * (index * 7919 % 50_000) for index in range(200)]
        await asyncio.wait_for(send_all(alpha, Kind.REQUEST, beta, packets), DEADLINE_S)
        came = await beta.until_count(Kind.REQUEST, len(packets))
        assert Counter(came) == Counter(packets)
        assert came == packets or not alpha.transporter.keeps_order

    async def test_everybody_talks_to_everybody_at_once(self, nodes: Nodes) -> None:
        everybody = await nodes.join_all(NODE_IDS)
        expected = {}
        sending = []
        for sender in everybody:
            for receiver in everybody:
                if sender is receiver:
                    continue
                packets = [f"{sender.node_id} {index}".encode() for index in range(300)]
                expected[sender, receiver] = packets
                sending.append(send_all(sender, Kind.EVENT, receiver, packets))
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*sending)
        for receiver in everybody:
            came = await receiver.until_count(Kind.EVENT, 300 * (len(everybody) - 1))
            for sender in everybody:
                begin = f"{sender.node_id} ".encode()
                of_sender = [data for data in came if data.startswith(begin)]
                assert sorted(of_sender) == sorted(expected.get((sender, receiver), ()))
                if sender.transporter.keeps_order:
                    assert of_sender == expected.get((sender, receiver), [])

    async def test_question_and_answer(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        for data in numbered(50):
            alpha.send(Kind.REQUEST, beta, data)
            await beta.until_received(Kind.REQUEST, data)
            beta.send(Kind.RESPONSE, alpha, data)
            await alpha.until_received(Kind.RESPONSE, data)
        assert beta.data_of(Kind.REQUEST) == alpha.data_of(Kind.RESPONSE) == numbered(50)

    async def test_a_listener_that_is_slow_gets_all(self, nodes: Nodes) -> None:
        alpha = await nodes.join("alpha")
        slow = await nodes.join("beta", slowness_s=0.001)
        packets = [data + b"x" * 4 * KIB for data in numbered(500)]
        await asyncio.wait_for(send_all(alpha, Kind.REQUEST, slow, packets), DEADLINE_S)
        came = await slow.until_count(Kind.REQUEST, len(packets))
        assert came == packets or not alpha.transporter.keeps_order
        assert Counter(came) == Counter(packets)

    async def test_drain_returns(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        packets = [data + bytes(256 * KIB) for data in numbered(40)]
        async with asyncio.timeout(DEADLINE_S):
            await alpha.transporter.drain()
            for data in packets:
                alpha.send(Kind.RESPONSE, beta, data)
            await alpha.transporter.drain()
        assert Counter(await beta.until_count(Kind.RESPONSE, 40)) == Counter(packets)


class BroadcastBehaviour:
    """For those that can send to all."""

    broadcast: ClassVar[tuple[Kind, ...]]

    async def test_packets_for_all_come_everywhere(self, nodes: Nodes) -> None:
        alpha, beta, gamma = await nodes.join_all(["alpha", "beta", "gamma"])
        for kind in self.broadcast:
            alpha.send(kind, None, b"for all")
        for node in (beta, gamma):
            for kind in self.broadcast:
                await node.until_received(kind, b"for all")
            assert Counter(node.heard.packets) == {(kind, b"for all"): 1 for kind in self.broadcast}
        # They may or may not come back to the sender.
        assert set(alpha.heard.packets) <= {(kind, b"for all") for kind in self.broadcast}

    async def test_namespaces_are_apart(self, nodes: Nodes) -> None:
        spaces = [nodes.namespace, f"{nodes.namespace}x", f"{nodes.namespace}.INFO"]
        pairs = [
            [await nodes.join(node_id, namespace=space) for node_id in ("alpha", "beta")]
            for space in spaces
        ]
        for (sender, receiver), space in zip(pairs, spaces, strict=True):
            sender.send(Kind.INFO, None, space.encode())
            sender.send(Kind.EVENT, receiver, space.encode())
            await receiver.until_received(Kind.INFO, space.encode())
            await receiver.until_received(Kind.EVENT, space.encode())
        for (_, receiver), space in zip(pairs, spaces, strict=True):
            assert {packet.data for packet in receiver.heard.packets} == {space.encode()}

    async def test_who_comes_later_hears_what_comes_later(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        alpha.send(Kind.INFO, None, b"first")
        await beta.until_received(Kind.INFO, b"first")
        gamma = await nodes.join("gamma")
        alpha.send(Kind.INFO, None, b"second")
        await gamma.until_received(Kind.INFO, b"second")
        assert gamma.data_of(Kind.INFO) == [b"second"]


class LimitBehaviour:
    """For those with a limit of their own to the size of packets."""

    async def test_only_a_packet_above_the_limit_is_refused(self, nodes: Nodes) -> None:
        alpha, beta = await nodes.join_all(["alpha", "beta"])
        limit = alpha.transporter.packet_bytes_max
        assert limit is not None
        with pytest.raises(MessageTooLargeError, match=str(limit)):
            alpha.send(Kind.EVENT, beta, bytes(limit + 1))
        alpha.send(Kind.EVENT, beta, bytes(limit))
        assert await beta.until_count(Kind.EVENT, 1) == [bytes(limit)]
        assert alpha.heard.losses == beta.heard.losses == []
