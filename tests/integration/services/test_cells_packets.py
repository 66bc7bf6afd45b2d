"""Packets between nodes in domains of cells: their order, what is too much, and what is garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from postroad.cells import CellDomain, Role
from postroad.core import Limits
from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB
from postroad.net import MessagingService
from postroad.services.errors import BrokerDisconnectedError, QueueIsFullError
from postroad.services.kinds import Kind
from postroad.services.topics import Topics
from postroad.services.transporters.cells import CellsTransporter
from postroad.services.transporters.cells_lanes import NodeLane, QueueLane
from postroad.services.transporters.cells_letters import encode_letter
from postroad.services.transporters.cells_outgoing import WAITING_BYTES_MAX, Outgoing
from tests.support.cells.nodes import Domains, Gate, Inbox, quick
from tests.support.deadlines import eventually
from tests.support.services.transporter_nodes import Node, Recorder


def node_in(domain: CellDomain, node_id: str, namespace: str = "") -> Node:
    return Node(node_id, CellsTransporter(domain), Topics(node_id, namespace), Recorder())


@asynccontextmanager
async def connected(*nodes: Node) -> AsyncIterator[None]:
    for node in nodes:
        await node.transporter.connect()
    yield
    for node in nodes:
        await node.transporter.disconnect()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Domains, Node, Node]]:
    """Two nodes in satellites."""
    async with Domains(1, 2) as domains:
        alpha, beta = node_in(domains["S1"], "alpha"), node_in(domains["S2"], "beta")
        async with connected(alpha, beta):
            yield domains, alpha, beta


# Who and what.


async def test_a_node_may_have_any_id_that_is_not_too_long() -> None:
    node_id = "we@rd :*/%40 n\u00e4me\u2028\U0001f600"
    async with Domains(1, 2) as domains:
        for namespace in ("", "dev", "de v/@:*"):
            odd = node_in(domains["S1"], node_id, namespace)
            plain = node_in(domains["S2"], "b", namespace)
            async with connected(odd, plain):
                plain.send(Kind.REQUEST, odd, b"by name")
                await odd.until_received(Kind.REQUEST, b"by name")
                odd.send(Kind.RESPONSE, plain, b"back")
                await plain.until_received(Kind.RESPONSE, b"back")
                plain.send(Kind.REQUEST, odd, b"by address")
                await odd.until_received(Kind.REQUEST, b"by address")
        with pytest.raises(ConfigError, match="255"):
            await node_in(domains["S1"], "x" * 300).transporter.connect()


async def test_what_cannot_be_sent() -> None:
    async with pair() as (_, alpha, _beta):
        with pytest.raises(ConfigError, match="not to all"):
            alpha.transporter.publish(Kind.REQUEST, None, b"")
        with pytest.raises(ConfigError, match="no topic"):
            alpha.transporter.publish(Kind.GOSSIP_HELLO, "beta", b"")
    with pytest.raises(BrokerDisconnectedError):
        await alpha.transporter.listen_balanced([])


async def test_packets_for_one_and_for_all_keep_their_order() -> None:
    async with pair() as (_, alpha, beta):
        sent = []
        for number in range(100):
            kind = (Kind.RESPONSE, Kind.HEARTBEAT, Kind.EVENT)[number % 3]
            to = None if kind is Kind.HEARTBEAT else beta
            alpha.send(kind, to, b"%d" % number)
            sent.append((kind, b"%d" % number))
        await beta.until_received(Kind.RESPONSE, b"99")
        assert beta.heard.packets == sent


async def test_nothing_comes_before_the_end_of_the_turn() -> None:
    async with Domains(1, 0) as domains:
        alpha, beta = node_in(domains["C1"], "alpha"), node_in(domains["C1"], "beta")
        async with connected(alpha, beta):
            topic = alpha.action("math.add")
            await beta.transporter.listen_balanced([topic])
            alpha.send(Kind.EVENT, beta, b"one")
            alpha.send(Kind.INFO, None, b"all")
            alpha.send_balanced(topic, b"some")
            assert beta.heard.packets == []
            await beta.until_received(Kind.REQUEST, b"some")
            assert beta.data_of(Kind.EVENT) == [b"one"]
            assert beta.data_of(Kind.INFO) == [b"all"]
            assert alpha.heard.packets == []


async def test_who_gets_a_packet_may_publish_at_once() -> None:
    """Also to itself, which it reaches within the same turn."""
    async with Domains(1, 0) as domains:
        chain = Chain(200)
        alpha = Node("alpha", CellsTransporter(domains["C1"]), Topics("alpha"), chain)
        chain.publish = alpha.transporter.publish
        await alpha.transporter.connect()
        alpha.send(Kind.EVENT, alpha, b"0")
        alpha.send(Kind.EVENT, alpha, b"0")
        assert len(await alpha.until_count(Kind.EVENT, 402)) == 402
        await alpha.transporter.disconnect()


class Chain(Recorder):
    """Answers each number with the next one, up to a last one."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last
        self.publish: Callable[[Kind, str, bytes], None]

    def received(
        self,
        kind: Kind,
        data: bytes,
        done: Callable[[], None] | None = None,
        sender: str | None = None,
    ) -> None:
        super().received(kind, data, done, sender)
        if int(data) < self._last:
            self.publish(kind, "alpha", b"%d" % (int(data) + 1))


# What is garbage.


async def test_garbage_harms_nobody() -> None:
    async with pair() as (domains, alpha, beta):
        cell = "MOL/node/beta"
        node = domains["S1"].identity.cell("MOL/node/alpha")
        for body in (b"garbage", b"", {"not": "a letter"}, msgspec.msgpack.encode([["REQ", 1]])):
            await domains["S1"].send(cell, body, sender=node)
        letter = [("REQ", b"good"), ("NEWS", b"unknown"), ("RES", b"too")]
        await domains["S1"].send(cell, encode_letter(letter), sender=node)
        await beta.until_received(Kind.RESPONSE, b"too")
        assert beta.heard.packets == [(Kind.REQUEST, b"good"), (Kind.RESPONSE, b"too")]
        assert isinstance(beta.transporter, CellsTransporter)
        statistics = beta.transporter.statistics()
        assert (statistics.malformed, statistics.unknown, statistics.lost) == (4, 1, 0)
        alpha.send(Kind.EVENT, beta, b"still there")
        await beta.until_received(Kind.EVENT, b"still there")


# What is too much.


async def test_a_slow_queue_fills_without_keeping_others_out() -> None:
    async with Domains(1, 0, config=quick(mailbox_messages_max=2)) as domains:
        domain = domains["C1"]
        gate, inbox = Gate(), Inbox()
        domain.add_function("gate", gate, consume=["slow"])
        domain.add_function("inbox", inbox, consume=["quick"])
        outgoing = Outgoing(domain, domain.identity.cell("test"), lambda lane, error: None)
        slow, fast = QueueLane("slow"), QueueLane("quick")
        taken = 0
        with pytest.raises(QueueIsFullError, match="slow"):
            for _ in range(200):
                outgoing.put(slow, "REQ", bytes(MIB))
                taken += 1
                await asyncio.sleep(0)
        assert taken * MIB < WAITING_BYTES_MAX
        outgoing.put(fast, "REQ", bytes(16 * MIB))
        outgoing.clear(fast)
        outgoing.put(fast, "REQ", b"let me through")
        await eventually(lambda: inbox.messages)
        gate.open()
        await eventually(lambda: len(gate.finished) == taken)
        await asyncio.wait_for(slow.room(), 30)
        outgoing.put(slow, "REQ", bytes(MIB))
        await eventually(lambda: len(gate.finished) == taken + 1)
        await outgoing.close()


async def test_no_more_than_a_window_is_under_way() -> None:
    """A node that does not confirm anything: its cell is busy with the first letter."""
    async with Domains(1, 0, config=quick(mailbox_messages_max=10_000)) as domains:
        domain = domains["C1"]
        gate = Gate()
        domain.add_function("MOL/node/beta", gate)
        outgoing = Outgoing(domain, domain.identity.cell("test"), lambda lane, error: None)
        lane = NodeLane("beta", "MOL/node/beta")
        for number in range(64):
            outgoing.put(lane, "REQ", bytes(64 * KIB) + b"%d" % number)
        draining = asyncio.create_task(outgoing.drain())
        await eventually(lambda: lane.is_blocked)
        assert MIB <= lane.under_way < MIB + 66 * KIB
        assert not draining.done()
        gate.open()
        await asyncio.wait_for(draining, 30)
        await eventually(lambda: len(gate.finished) == 64)
        assert lane.waiting == 0
        # What is confirmed is confirmed once nothing asks any more.
        await eventually(lambda: lane.under_way < MIB)
        outgoing.clear(lane)
        await outgoing.close()


async def test_small_frames_carry_what_they_say_they_carry() -> None:
    limits = Limits(frame_bytes_max=64 * KIB)
    async with (
        MessagingService("test", "C9", limits=limits) as service,
        CellDomain(service, role=Role.CORE) as domain,
    ):
        alpha, beta = node_in(domain, "alpha"), node_in(domain, "beta")
        async with connected(alpha, beta):
            limit = alpha.transporter.packet_bytes_max
            assert limit is not None
            packets = [bytes(limit), b"a", bytes(limit // 2), bytes(limit), b"z"]
            for data in packets:
                alpha.send(Kind.EVENT, beta, data)
            assert await beta.until_count(Kind.EVENT, len(packets)) == packets
