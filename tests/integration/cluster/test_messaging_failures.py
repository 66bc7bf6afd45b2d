"""Messages by member name that fail: unknown member, wrong peer, malformed payload."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from postroad.cluster import Member, MembershipConfig, MemberState
from postroad.cluster.agent import SUBJECT
from postroad.cluster.membership.gossip import GossipPacket, encode_packet
from postroad.cluster.messaging import raw_bytes
from postroad.core import errors
from postroad.net import DatagramService, Outcome
from tests.support.cluster import nodes
from tests.support.deadlines import eventually
from tests.support.net.peers import stays


class Order(msgspec.Struct):
    item: str


encode = msgspec.msgpack.encode
read_order = msgspec.msgpack.Decoder(Order).decode


# Nobody of that name.


async def test_send_to_an_unknown_member_fails() -> None:
    async with nodes.running_cluster("a b c") as (a, _b, _c):
        for call in (
            a.communication.request("nobody", "who", b""),
            a.communication.send("nobody", "who", b""),
            a.communication.send("nobody", "who", b"", reliable=False),
        ):
            error = await nodes.failure(call, errors.MemberNotFoundError)
            assert (error.outcome, error.retryable) == (Outcome.NOT_SENT, True)
            assert error.subject == "who"
            assert "no member 'nobody'; known are a, b, c" in str(error)


async def test_sender_that_is_no_member(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        nodes.running_cluster("a b") as (_, b),
        nodes.running_service("stranger") as unknown_node,
    ):
        calls: list[bytes] = []

        def reply(message: bytes, _member: Member) -> bytes:
            calls.append(message)
            return b""

        b.communication.serve("who", reply)
        inbox = nodes.Inbox(b)
        with pytest.raises(errors.RemoteHandlerError) as refused:
            await unknown_node.request(b.address, "who", b"1")
        assert refused.value.remote_code == errors.MemberNotFoundError.code
        assert (refused.value.outcome, refused.value.retryable) == (Outcome.REPLIED, True)
        assert f"sender {unknown_node.address} is not a known cluster member" in str(refused.value)
        await unknown_node.send(b.address, "note", b"2")
        await eventually(lambda: b.communication.statistics().unknown_senders == 2)
        assert (calls, inbox.messages) == ([], [])
        assert b.names == {"a", "b"}
    assert "is not a known cluster member" in caplog.text


async def test_member_that_is_not_known_to_the_receiver() -> None:
    """Here because it has no room for more; usually because news need a moment."""
    slow = {"probe_interval_s": 1_000, "sync_interval_s": 1_000}
    async with (
        nodes.running_node("a", config=MembershipConfig(members_max=1, **slow)) as a,
        nodes.running_node("c", a, config=MembershipConfig(**slow)) as c,
        nodes.running_node("b", config=MembershipConfig(**slow)) as b,
        DatagramService(nodes.CLUSTER, "herald") as herald,
    ):
        await nodes.all_know([a, c])
        a.communication.serve("who", lambda _message, member: member.name.encode())
        records = await nodes.request_full_state(a)
        await herald.send(b.address, SUBJECT, encode_packet(GossipPacket(records=[records["a"]])))
        await b.until_knows("a")
        error = await nodes.failure(
            b.communication.request("a", "who", b""), errors.MemberNotFoundError
        )
        assert (error.outcome, error.retryable) == (Outcome.REPLIED, True)
        assert "the peer does not know this node yet" in str(error)
        assert error.subject == "who"


async def test_member_that_left() -> None:
    async with nodes.running_cluster("a b") as (a, b):
        await b.stop()
        await a.until_removed("b")
        await nodes.failure(a.communication.request("b", "who", b""), errors.MemberNotFoundError)


async def test_suspected_member_is_still_reached() -> None:
    async with nodes.running_cluster("a b", config=nodes.QUICK) as (a, b):
        b.communication.serve("who", lambda _message, _member: b"me")
        await b.agent.datagram_service.stop()  # type: ignore[union-attr]
        b.service.unsubscribe("cluster.membership")
        await a.until(lambda node: node.see("b").state is MemberState.SUSPECT, "b is suspected")
        assert await a.communication.request("b", "who", b"") == b"me"


# Somebody else at the address.


@nodes.both_transports
async def test_another_node_at_the_address(datagrams: bool) -> None:
    async with nodes.running_cluster("a b", datagrams=datagrams) as (a, b):
        await b.crash()
        async with nodes.running_service("impostor", bind=b.address) as impostor:
            got: list[bytes] = []
            impostor.serve("secret", lambda message: got.append(message.payload))
            for call in (
                a.communication.request("b", "secret", b"1"),
                a.communication.send("b", "secret", b"2"),
            ):
                error = await nodes.failure(call, errors.WrongPeerError)
                assert (error.outcome, error.retryable) == (Outcome.NOT_SENT, True)
            failures = await a.communication.broadcast("secret", b"3")
            assert failures.keys() == {"b"}
            assert isinstance(failures["b"], errors.WrongPeerError)
            await stays(lambda: not got)


async def test_another_member_at_the_address_of_one_that_crashed() -> None:
    async with nodes.running_cluster("a b", config=nodes.QUICK) as (a, b):
        await b.crash()
        async with nodes.running_node("c", a, bind=b.address, config=nodes.QUICK) as c:
            got = nodes.Inbox(c, "secret")
            await a.until_meets(c.agent.local_member)
            with pytest.raises((errors.WrongPeerError, errors.MemberNotFoundError)):
                await a.communication.request("b", "secret", b"1")
            await a.until_removed("b")
            assert a.see("c").is_reachable
            assert got.messages == []


# Failing handlers and messages nobody can read.


async def test_failing_handler() -> None:
    def fail(_message: bytes, _member: Member) -> bytes:
        raise RuntimeError("out of apples")

    async def fail_later(_message: bytes, _member: Member) -> bytes:
        raise RuntimeError("out of pears")

    async with nodes.running_cluster("a b") as (a, b):
        b.communication.serve("now", fail)
        b.communication.serve("later", fail_later, encoder=raw_bytes)
        for subject, text in (("now", "out of apples"), ("later", "out of pears")):
            error = await nodes.failure(
                a.communication.request("b", subject, b""), errors.RemoteHandlerError
            )
            assert (error.outcome, error.retryable) == (Outcome.REPLIED, False)
            assert text in str(error)
        await nodes.failure(a.communication.request("b", "nothing", b""), errors.NoHandlerError)


async def test_failing_consumers_of_datagrams(caplog: pytest.LogCaptureFixture) -> None:
    async def fail_later(_message: bytes, _member: Member) -> None:
        raise RuntimeError("out of pears")

    async with nodes.running_cluster("a b") as (a, b):
        b.communication.subscribe("later", fail_later)
        await a.communication.send("b", "later", b"", reliable=False)
        await eventually(lambda: b.communication.statistics().failed == 1)
        assert "handler of 'later' failed: RuntimeError('out of pears')" in caplog.text


async def test_message_that_cannot_be_decoded(caplog: pytest.LogCaptureFixture) -> None:
    async with nodes.running_cluster("a b") as (a, b):
        orders: list[Order] = []
        b.communication.serve(
            "bill", lambda order, _member: order, decoder=read_order, encoder=encode
        )
        b.communication.subscribe(
            "order", lambda order, _member: orders.append(order), decoder=read_order
        )
        error = await nodes.failure(
            a.communication.request("b", "bill", b"\xc1"), errors.RemoteDecodeError
        )
        assert (error.outcome, error.retryable) == (Outcome.REPLIED, False)
        assert "DecodeError" in str(error)
        await a.communication.send("b", "order", b"\xc1", reliable=False)
        await eventually(lambda: b.communication.statistics().malformed == 1)
        await a.communication.send("b", "order", b"\xc1")
        await a.communication.send("b", "order", Order("apple"), encoder=encode)
        await eventually(lambda: orders == [Order("apple")])
        assert "datagram to 'order' dropped" in caplog.text


async def test_reply_that_cannot_be_decoded_or_never_comes_fails() -> None:
    async def hang(_message: bytes, _member: Member) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with nodes.running_cluster("a b") as (a, b):
        b.communication.serve("bill", lambda _message, _member: b"\xc1")
        with pytest.raises(errors.MalformedPayloadError, match="DecodeError"):
            await a.communication.request("b", "bill", b"", decoder=read_order)
        b.communication.serve("hang", hang, encoder=raw_bytes)
        error = await nodes.failure(
            a.communication.request("b", "hang", b"", timeout=0.05), errors.ReplyTimeoutError
        )
        assert error.timeout_s == 0.05


async def test_too_large_for_a_datagram() -> None:
    async with nodes.running_cluster("a b") as (a, b):
        inbox = nodes.Inbox(b)
        error = await nodes.failure(
            a.communication.send("b", "note", bytes(66_000), reliable=False),
            errors.MessageTooLargeError,
        )
        assert error.outcome is Outcome.NOT_SENT
        await a.communication.send("b", "note", bytes(66_000))
        await inbox.until((bytes(66_000), "a"))
