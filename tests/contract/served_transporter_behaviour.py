"""What transporters do when there is a server between the nodes, and something befalls it.

A class for a kind brings the fixture `served_wiring`, with a server that is the test's own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from postroad.core.limits import MIB
from postroad.services.errors import BrokerDisconnectedError, QueueIsFullError
from postroad.services.kinds import Kind
from postroad.services.transporters import cells_session, reconnecting
from tests.support.deadlines import DEADLINE_S
from tests.support.services.transporter_nodes import (
    Node,
    Nodes,
    ServedWiring,
    nodes_of,
    numbered,
    until_shared,
)

# More than what fits between two sockets, and less than what servers keep for a reader.
_PAUSED_PACKETS = 24


@contextmanager
def under_load(sender: Node, receiver: Node) -> Iterator[None]:
    """Have packets on their way all the time, as far as there is a connection."""

    async def send_on() -> None:
        for number in count():
            try:
                sender.send(Kind.EVENT, receiver, b"load %d" % number)
                await sender.transporter.drain()
            except (BrokerDisconnectedError, QueueIsFullError):
                await asyncio.sleep(0.01)
            if number % 20 == 0:
                await asyncio.sleep(0)

    load = asyncio.create_task(send_on())
    try:
        yield
        assert not load.done(), f"the load ended: {load!r}"
    finally:
        load.cancel()


async def talk(alpha: Node, beta: Node, word: bytes) -> None:
    """Send and wait for something in both directions."""
    for sender, receiver in ((alpha, beta), (beta, alpha)):
        sender.send(Kind.REQUEST, receiver, word)
        await receiver.until_received(Kind.REQUEST, word)


async def restart(wiring: ServedWiring, *nodes: Node) -> None:
    """Kill the server and start it again; returns when all nodes are back."""
    times = nodes[0].heard.connections.count(True) + 1
    await wiring.kill()
    for node in nodes:
        await node.until_lost(times)
        assert not node.transporter.is_connected
    await wiring.start()
    for node in nodes:
        await node.until_back(times)
        assert node.transporter.is_connected


async def fails_to_connect(node: Node) -> None:
    with pytest.raises(OSError, match=node.transporter.name):
        await asyncio.wait_for(node.transporter.connect(), DEADLINE_S)
    assert not node.transporter.is_connected


async def connect_in_the_end(node: Node) -> None:
    """Connect one that is impatient, however slow the machine is."""
    async with asyncio.timeout(DEADLINE_S):
        while not node.transporter.is_connected:
            with suppress(OSError):
                await node.transporter.connect()
    assert node.heard.connections == [False]


class ServedBehaviour:
    """For those with a server between the nodes."""

    @pytest.fixture
    async def served(self, served_wiring: ServedWiring) -> AsyncIterator[Nodes]:
        async with nodes_of(served_wiring) as nodes:
            yield nodes

    async def test_connecting_fails_soon_while_there_is_no_server(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        await served_wiring.kill()
        node = served.make("alpha", transporter=served_wiring.make_impatient("alpha"))
        for _ in range(2):
            await fails_to_connect(node)
            with pytest.raises(BrokerDisconnectedError):
                node.transporter.publish(Kind.EVENT, "beta", b"nowhere")
        assert not node.heard.connections
        assert not node.heard.losses
        await served_wiring.start()
        await connect_in_the_end(node)
        await talk(node, await served.join("beta"), b"hello")

    async def test_connecting_fails_soon_while_the_server_is_silent(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        await served_wiring.pause()
        node = served.make("alpha", transporter=served_wiring.make_impatient("alpha"))
        try:
            await fails_to_connect(node)
        finally:
            await served_wiring.resume()
        await connect_in_the_end(node)

    @pytest.mark.slow
    async def test_packets_come_again_after_restarts_under_load(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        alpha, beta, gamma = everybody = await served.join_all(["alpha", "beta", "gamma"])
        with under_load(alpha, beta), under_load(beta, alpha):
            await talk(alpha, beta, b"before")
            for number in range(2):
                await restart(served_wiring, *everybody)
                await talk(alpha, beta, b"after %d" % number)
        for kind in (Kind.DISCOVER, Kind.INFO, Kind.HEARTBEAT):
            alpha.send(kind, None, b"again")
            await beta.until_received(kind, b"again")
            await gamma.until_received(kind, b"again")
        for node in everybody:
            assert node.heard.connections == [False, True, True]
            assert len(node.heard.losses) == 2

    async def test_nothing_is_sent_while_the_server_is_gone(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        alpha, beta, leaving = everybody = await served.join_all(["alpha", "beta", "gamma"])
        await served_wiring.kill()
        for node in everybody:
            await node.until_lost()
        with pytest.raises(BrokerDisconnectedError):
            alpha.send(Kind.EVENT, beta, b"lost")
        async with asyncio.timeout(DEADLINE_S):
            await alpha.transporter.drain()
            await leaving.transporter.disconnect()
        await served_wiring.start()
        await alpha.until_back()
        await beta.until_back()
        alpha.send(Kind.EVENT, beta, b"back")
        await beta.until_received(Kind.EVENT, b"back")
        assert beta.data_of(Kind.EVENT) == [b"back"]
        assert leaving.heard.connections == [False]
        assert len(leaving.heard.losses) == 1

    async def test_to_disconnect_as_the_server_goes(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        alpha, beta = await served.join_all(["alpha", "beta"])
        with under_load(alpha, beta):
            await asyncio.sleep(0)
            leaving = asyncio.gather(
                served_wiring.kill(), alpha.transporter.disconnect(), beta.transporter.disconnect()
            )
            await asyncio.wait_for(leaving, DEADLINE_S)
        assert not alpha.transporter.is_connected
        assert not beta.transporter.is_connected

    async def test_to_disconnect_from_a_paused_server(
        self, served_wiring: ServedWiring, served: Nodes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (reconnecting, cells_session):
            monkeypatch.setattr(module, "GOODBYE_S", 0.2)
        alpha, beta = await served.join_all(["alpha", "beta"])
        await served_wiring.pause()
        try:
            for _ in range(_PAUSED_PACKETS):
                alpha.send(Kind.RESPONSE, beta, bytes(MIB // 2))
            await asyncio.wait_for(alpha.transporter.disconnect(), DEADLINE_S)
            assert not alpha.transporter.is_connected
        finally:
            await served_wiring.resume()

    async def test_a_paused_server_is_waited_for(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        alpha, beta = await served.join_all(["alpha", "beta"])
        packets = [data + bytes(MIB - 64) for data in numbered(_PAUSED_PACKETS)]
        await served_wiring.pause()
        try:
            for data in packets:
                alpha.send(Kind.RESPONSE, beta, data)
            draining = asyncio.create_task(alpha.transporter.drain())
            await asyncio.wait([draining], timeout=0.3)
            assert not draining.done()
        finally:
            await served_wiring.resume()
        await asyncio.wait_for(draining, DEADLINE_S)
        assert Counter(await beta.until_count(Kind.RESPONSE, len(packets))) == Counter(packets)
        assert alpha.heard.losses == beta.heard.losses == []

    async def test_memory_is_bounded(self, served_wiring: ServedWiring, served: Nodes) -> None:
        alpha, beta = await served.join_all(["alpha", "beta"])
        data = bytes(MIB - 64)
        await served_wiring.pause()
        try:
            with pytest.raises(QueueIsFullError):
                for _ in range(100):
                    alpha.send(Kind.RESPONSE, beta, data)
                    await asyncio.sleep(0)
            assert alpha.transporter.is_connected
        finally:
            await served_wiring.kill()

    async def test_a_server_that_falls_silent_is_given_up(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        alpha, beta = [
            served.make(node_id, transporter=served_wiring.make_impatient(node_id))
            for node_id in ("alpha", "beta")
        ]
        for node in (alpha, beta):
            await connect_in_the_end(node)
        await served_wiring.pause()
        try:
            # Whether there is something to send or not.
            with under_load(alpha, beta):
                await alpha.until_lost()
            await beta.until_lost()
            with pytest.raises(BrokerDisconnectedError):
                alpha.send(Kind.EVENT, beta, b"lost")
        finally:
            await served_wiring.resume()
        await alpha.until_back()
        await beta.until_back()
        await talk(alpha, beta, b"again")


class BalancedServedBehaviour:
    """For those whose server gives packets to one of many nodes."""

    @pytest.mark.slow  # Of all tests, this one really restarts RabbitMQ.
    async def test_queues_are_listened_to_again(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        alpha, beta, gamma = await served.join_all(["alpha", "beta", "gamma"])
        topic, old = alpha.action("math.add"), alpha.action("math.old")
        for node in (beta, gamma):
            await node.transporter.listen_balanced([old])
            await node.transporter.listen_balanced([topic])
        with under_load(alpha, beta):
            await restart(served_wiring, alpha, beta, gamma)
        for data in numbered(100):
            alpha.send_balanced(topic, data)
        came = await until_shared(100, Kind.REQUEST, beta, gamma)
        assert Counter(came) == Counter(numbered(100))
        assert beta.data_of(Kind.REQUEST)
        assert gamma.data_of(Kind.REQUEST)

    async def test_to_listen_while_the_server_is_gone(
        self, served_wiring: ServedWiring, served: Nodes
    ) -> None:
        alpha, beta = await served.join_all(["alpha", "beta"])
        topic = alpha.action("math.add")
        await served_wiring.kill()
        await beta.until_lost()
        await asyncio.wait_for(beta.transporter.listen_balanced([topic]), DEADLINE_S)
        await served_wiring.start()
        await alpha.until_back()
        await beta.until_back()
        alpha.send_balanced(topic, b"found")
        await beta.until_received(Kind.REQUEST, b"found")
