"""Topics: every subscriber on any node receives what is published."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from postroad.cluster import ClusterTopics, Member
from postroad.core.errors import ConfigError, ConnectError, ConnectionClosedError
from tests.support.cluster.nodes import Node, both_transports, running_cluster, running_node
from tests.support.deadlines import eventually
from tests.support.net.peers import stays


class Price(msgspec.Struct):
    item: str
    cents: int


class Reader:
    """A subscriber that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, str]] = []

    def __call__(self, message: bytes, member: Member) -> None:
        self.messages.append((message, member.name))

    async def until(self, count: int) -> None:
        await eventually(lambda: len(self.messages) == count)


async def until_subscribed(node: Node, topic: str, *names: str) -> None:
    """The node knows that these, and no others, want the topic."""
    topics = ClusterTopics(node.communication)
    await node.until(
        lambda _: {subscriber.name for subscriber in topics.subscribers(topic)} == set(names),
        f"{names} want {topic!r}",
    )


@both_transports
async def test_publish_reaches_all_subscribers(datagrams: bool) -> None:
    async with running_cluster("a b c", datagrams=datagrams) as nodes:
        a, b, c = (ClusterTopics(node.communication) for node in nodes)
        readers = [Reader(), Reader()]
        a.subscribe("prices", readers[0])
        b.subscribe("prices", readers[1])
        for node in nodes:
            await until_subscribed(node, "prices", "a", "b")
        assert await c.publish("prices", b"1") == {}
        assert await a.publish("prices", b"2") == {}
        assert await c.publish("nothing", b"3") == {}
        for reader in readers:
            await reader.until(2)
            assert sorted(reader.messages) == [(b"1", "c"), (b"2", "a")]
        assert repr(a) == "<ClusterTopics of a: prices>"
        assert repr(c) == "<ClusterTopics of c: none>"


async def test_messages_of_one_publisher_keep_their_order() -> None:
    async with running_cluster("a b") as nodes:
        a, b = (ClusterTopics(node.communication) for node in nodes)
        reader = Reader()
        b.subscribe("count", reader)
        await until_subscribed(nodes[0], "count", "b")
        for number in range(200):
            await a.publish("count", b"%d" % number)
        await reader.until(200)
        assert [int(message) for message, _ in reader.messages] == list(range(200))


async def test_several_handlers_and_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    prices: list[Price] = []
    later: list[bytes] = []

    def fail(_message: bytes, _member: Member) -> None:
        raise RuntimeError("subscriber out of order")

    async def read_later(message: bytes, _member: Member) -> None:
        await asyncio.sleep(0)
        later.append(message)

    async with running_cluster("a b") as nodes:
        a, b = (ClusterTopics(node.communication) for node in nodes)
        reader = Reader()
        b.subscribe("prices", fail)
        b.subscribe(
            "prices",
            lambda price, _member: prices.append(price),
            decoder=msgspec.json.Decoder(Price).decode,
        )
        b.subscribe("prices", read_later)
        b.subscribe("prices", reader)
        await until_subscribed(nodes[0], "prices", "b")
        message = b'{"item":"apple","cents":7}'
        assert await a.publish("prices", Price("apple", 7), encoder=msgspec.json.encode) == {}
        await reader.until(1)
        assert reader.messages == [(message, "a")]
        assert prices == [Price("apple", 7)]
        assert later == [message]
        assert "subscriber out of order" in caplog.text
        # One that cannot read the message keeps it from nobody else either.
        await a.publish("prices", b"no price")
        await reader.until(2)
        assert len(prices) == 1


async def test_unsubscribe() -> None:
    async with running_cluster("a b c") as nodes:
        a, b, _c = (ClusterTopics(node.communication) for node in nodes)
        first, second = Reader(), Reader()
        one = b.subscribe("prices", first)
        b.subscribe("prices", second)
        await until_subscribed(nodes[0], "prices", "b")
        b.unsubscribe("prices", one)
        await a.publish("prices", b"1")
        await second.until(1)
        assert first.messages == []

        b.unsubscribe("prices")
        b.unsubscribe("prices")
        b.unsubscribe("never")
        # Those who have not heard of it yet may still send: it reaches nobody.
        await a.publish("prices", b"2")
        for node in nodes:
            await until_subscribed(node, "prices")
        assert await a.publish("prices", b"3") == {}
        await stays(lambda: len(second.messages) == 1)
        assert nodes[0].see("b").properties == {}

        b.subscribe("prices", first)
        await until_subscribed(nodes[0], "prices", "b")
        await a.publish("prices", b"4")
        await eventually(lambda: first.messages == [(b"4", "a")])


async def test_publish_reports_a_crashed_subscriber() -> None:
    async with running_cluster("a b") as (a, b):
        ClusterTopics(b.communication).subscribe("prices", Reader())
        await until_subscribed(a, "prices", "b")
        await b.crash()
        failures = await ClusterTopics(a.communication).publish("prices", b"1")
        assert failures.keys() == {"b"}
        assert isinstance(failures["b"], ConnectError | ConnectionClosedError)


async def test_subscriptions_of_one_that_joins_and_leaves() -> None:
    async with running_node("a") as a:
        async with running_node("b", a) as b:
            ClusterTopics(b.communication).subscribe("prices", Reader())
            await until_subscribed(a, "prices", "b")
        await until_subscribed(a, "prices")


async def test_topics_live_beside_other_properties() -> None:
    async with running_cluster("a b") as (a, b):
        topics = ClusterTopics(b.communication)
        b.agent.set_properties({"zone": "north"})
        topics.subscribe("prices", Reader())
        topics.subscribe("news", Reader())
        await until_subscribed(a, "prices", "b")
        await until_subscribed(a, "news", "b")
        topics.unsubscribe("news")
        await until_subscribed(a, "news")
        assert a.see("b").properties == {"zone": "north", "topic:prices": ""}


async def test_bad_topics() -> None:
    async with running_node("a", properties={"large": "x" * 16_350}) as a:
        topics = ClusterTopics(a.communication)
        with pytest.raises(ConfigError, match="must not be empty"):
            topics.subscribe("", Reader())
        for _ in range(2):
            # What others cannot be told is not subscribed to, not even by half.
            with pytest.raises(ConfigError, match="properties of"):
                topics.subscribe("a topic too many for what there is room for", Reader())
        assert a.service.statistics().subscriptions == 1
        assert repr(topics) == "<ClusterTopics of a: none>"
