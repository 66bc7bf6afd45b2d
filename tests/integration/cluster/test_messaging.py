"""Messages by member name: every way to send them, and the sender that the receiver sees."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from postroad.cluster import Member
from postroad.core import errors
from postroad.net import MessagingService, Outcome
from tests.support.cluster.nodes import (
    Inbox,
    Node,
    all_know,
    both_transports,
    running_cluster,
    running_node,
    running_service,
)
from tests.support.deadlines import eventually
from tests.support.net.peers import SPEECHES, Gate, Speech


class Order(msgspec.Struct):
    item: str
    count: int


class Receipt(msgspec.Struct):
    total: int


encode = msgspec.msgpack.encode
read_order = msgspec.msgpack.Decoder(Order).decode
read_receipt = msgspec.msgpack.Decoder(Receipt).decode


def bill(order: Order, _member: Member) -> Receipt:
    return Receipt(order.count * 7)


async def bill_later(order: Order, member: Member) -> Receipt:
    await asyncio.sleep(0)
    return bill(order, member)


# Requests.


async def test_request_with_own_encoding_reaches_another_and_itself() -> None:
    async with running_cluster("a b") as nodes:
        for handler, subject in ((bill, "bill"), (bill_later, "later")):
            for node in nodes:
                node.communication.serve(subject, handler, decoder=read_order, encoder=encode)
            for target in ("b", "a"):
                receipt = await nodes[0].communication.request(
                    target, subject, Order("apple", 3), encoder=encode, decoder=read_receipt
                )
                assert receipt == Receipt(21)


async def test_handler_is_given_the_member() -> None:
    seen: list[Member] = []

    def handle(_message: bytes, member: Member) -> bytes:
        seen.append(member)
        return member.properties["zone"].encode()

    async with running_node("a", properties={"zone": "north"}) as a, running_node("b", a) as b:
        await all_know([a, b])
        b.communication.serve("who", handle)
        assert await a.communication.request("b", "who", b"") == b"north"
        assert seen == [b.see("a")]


async def test_bytes_on_the_wire_are_exactly_those_of_the_encoder() -> None:
    """So that nodes of other systems, which know no Communication, can take part."""
    order = encode(Order("apple", 3))
    async with running_cluster("a b") as (a, b):
        assert repr(a.communication) == "<ClusterMessaging of <ClusterAgent a member, 2 members>>"
        raw: list[tuple[bytes, str]] = []
        b.service.serve("raw", lambda message: raw.append((message.payload, message.subject)))
        assert b.agent.datagram_service is not None
        b.agent.datagram_service.subscribe(
            "raw", lambda message: raw.append((message.payload, message.subject))
        )
        assert await a.communication.request("b", "raw", Order("apple", 3), encoder=encode) == b""
        await a.communication.send("b", "raw", Order("apple", 3), encoder=encode)
        await a.communication.send("b", "raw", Order("apple", 3), encoder=encode, reliable=False)
        await eventually(lambda: len(raw) == 3)
        assert raw == [(order, "raw")] * 3

        b.communication.serve("bill", bill, decoder=read_order, encoder=encode)
        assert await a.service.request(b.address, "bill", order) == encode(Receipt(21))


# Messages without a reply.


async def test_unreliable_goes_by_datagram_and_reliable_does_not() -> None:
    async with running_cluster("a b") as (a, b):
        received: list[bytes] = []
        assert b.agent.datagram_service is not None
        b.agent.datagram_service.subscribe("note", lambda message: received.append(message.payload))
        streamed: list[bytes] = []
        b.service.serve("note", lambda message: streamed.append(message.payload))
        await a.communication.send("b", "note", b"quick", reliable=False)
        await a.communication.send("b", "note", b"sure")
        await eventually(lambda: received and streamed)
        assert (received, streamed) == ([b"quick"], [b"sure"])


@both_transports
@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "unreliable"])
async def test_unicast_multicast_and_broadcast_reach_whom_they_should(
    datagrams: bool, reliable: bool
) -> None:
    async with running_cluster("a b c d", datagrams=datagrams) as nodes:
        a = nodes[0].communication
        inboxes = {node.name: Inbox(node) for node in nodes}
        await a.send("b", "note", b"0", reliable=reliable)
        await a.send("a", "note", b"0", reliable=reliable)
        assert await a.multicast(["b", "c", "b"], "note", b"1", reliable=reliable) == {}
        assert await a.broadcast("note", b"2", reliable=reliable) == {}
        assert await a.broadcast("note", b"3", reliable=reliable, include_self=True) == {}
        await inboxes["a"].until((b"0", "a"), (b"3", "a"))
        await inboxes["b"].until((b"0", "a"), (b"1", "a"), (b"2", "a"), (b"3", "a"))
        await inboxes["c"].until((b"1", "a"), (b"2", "a"), (b"3", "a"))
        await inboxes["d"].until((b"2", "a"), (b"3", "a"))


async def test_multicast_encodes_once_and_tells_whom_it_missed() -> None:
    encoded: list[Order] = []

    def encode_once(order: Order) -> bytes:
        encoded.append(order)
        return encode(order)

    async with running_cluster("a b c") as (a, b, c):
        inbox = Inbox(b)
        await c.crash()
        failures = await a.communication.multicast(
            ["b", "c", "nobody"], "note", Order("apple", 1), encoder=encode_once
        )
        assert failures.keys() == {"c", "nobody"}
        assert isinstance(failures["c"], errors.ConnectError | errors.ConnectionClosedError)
        assert isinstance(failures["nobody"], errors.MemberNotFoundError)
        await inbox.until((encode(Order("apple", 1)), "a"))
        assert len(encoded) == 1


async def test_asynchronous_consumers() -> None:
    gate = Gate()

    async def consume(message: bytes, member: Member) -> None:
        await gate(message)  # type: ignore[arg-type]

    async with running_cluster("a b") as (a, b):
        b.communication.subscribe("slow", consume)
        await a.communication.send("b", "slow", b"1")
        await a.communication.send("b", "slow", b"2", reliable=False)
        await eventually(lambda: gate.waiting == 2)
        gate.open()
        await eventually(lambda: gate.finished == 2)


async def test_unsubscribe() -> None:
    async with running_cluster("a b") as (a, b):
        inbox = Inbox(b)
        await a.communication.send("b", "note", b"1", reliable=False)
        await inbox.until((b"1", "a"))
        assert b.communication.unsubscribe("note")
        assert not b.communication.unsubscribe("note")
        await a.communication.send("b", "note", b"2", reliable=False)
        await a.communication.send("b", "note", b"3")
        assert b.agent.datagram_service is not None
        await eventually(lambda: b.agent.datagram_service.statistics().unhandled == 1)  # type: ignore[union-attr]
        await eventually(lambda: b.service.statistics().no_handler == 1)
        assert len(inbox.messages) == 1
        again = Inbox(b)
        await a.communication.send("b", "note", b"4")
        await again.until((b"4", "a"))


# Other versions of the protocol.


@pytest.mark.parametrize("speech", SPEECHES, ids=str)
@both_transports
async def test_every_version_and_profile(speech: Speech, datagrams: bool) -> None:
    """Older ones tell no name, so that the sender is known by its address."""
    async with running_cluster("a b c", protocol=speech.protocol, datagrams=datagrams) as nodes:
        a, b, _c = nodes
        b.communication.serve("who", lambda _message, member: member.name.encode())
        inbox = Inbox(b)
        assert await a.communication.request("b", "who", b"") == b"a"
        await a.communication.send("b", "note", b"1")
        await a.communication.send("b", "note", b"2", reliable=False)
        await inbox.until((b"1", "a"), (b"2", "a"))
        async with running_service("stranger", protocol=speech.protocol) as unknown_node:
            await expect_unknown_sender_rejected(unknown_node, b)


@pytest.mark.parametrize("speech", SPEECHES, ids=str)
async def test_member_that_advertises_a_host_name(speech: Speech) -> None:
    """The oldest version tells its IP address instead, by which nobody knows it."""
    options = {"protocol": speech.protocol, "advertise": "localhost:0"}
    async with running_cluster("a b", **options) as (a, b):
        b.communication.serve("who", lambda _message, member: member.name.encode())
        if speech.version == 1:
            await expect_unknown_sender_rejected(a.service, b)
        else:
            assert await a.communication.request("b", "who", b"") == b"a"


async def expect_unknown_sender_rejected(unknown_node: MessagingService, node: Node) -> None:
    with pytest.raises(errors.MessagingError, match="not a known cluster member") as refused:
        await unknown_node.request(node.address, "who")
    assert refused.value.outcome is Outcome.REPLIED
    # It is asked who it is. Stopped meanwhile, asyncio's own loop would forget the connection.
    await eventually(lambda: unknown_node.statistics().connections_accepted > 0)


async def test_versions_mix_within_a_profile() -> None:
    old, new = Speech("documented", 1).protocol, Speech("documented", 3).protocol
    async with (
        running_node("a", protocol=new) as a,
        running_node("b", a, protocol=old) as b,
        running_node("c", b, protocol=new) as c,
    ):
        await all_know([a, b, c])
        for node in (a, b, c):
            node.communication.serve("who", lambda _message, member: member.name.encode())
        for sender in (a, b, c):
            for receiver in (a, b, c):
                answer: bytes = await sender.communication.request(receiver.name, "who", b"")
                assert answer == sender.name.encode()
