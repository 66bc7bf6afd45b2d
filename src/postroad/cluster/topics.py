"""Publishing to whoever wants to hear: subscriptions are properties of members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from postroad.cluster.membership import Member
from postroad.cluster.messaging import (
    ClusterMessaging,
    Decoder,
    Encoder,
    MemberMessageHandler,
    SendFailures,
    decode_with,
    raw_bytes,
)
from postroad.core import PostroadError, ThrottledLogger
from postroad.core.errors import ConfigError

logger = logging.getLogger("postroad.cluster")

M = TypeVar("M")

_PROPERTY = "topic:"
_SUBJECT = "topic."
_WARN_INTERVAL_S = 5.0


class ClusterTopics:
    """Topics of a cluster.

        topics = Topics(communication)
        topics.subscribe("prices", lambda message, member: print(member.name, message))
        await topics.publish("prices", b"apple 7")

    A new subscription is known to the others once their news have spread, within a second or two
    in a cluster of usual size. Handlers begin with the messages of one publisher in their order.
    """

    def __init__(self, communication: ClusterMessaging) -> None:
        self._communication = communication
        self._agent = communication.agent
        self._consumers: dict[str, list[MemberMessageHandler[bytes]]] = {}
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)

    def subscribe(
        self,
        topic: str,
        handler: MemberMessageHandler[M],
        *,
        decoder: Decoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
    ) -> MemberMessageHandler[bytes]:
        """Have `handler(message, member)` called for messages to the topic.

        Several may subscribe to one topic. Returns what `unsubscribe` takes.
        """
        _check_topic(topic)

        def consume(payload: bytes, member: Member) -> object:
            return handler(decode_with(decoder, payload), member)

        if topic not in self._consumers:
            self._announce_subscription(topic)
        self._consumers.setdefault(topic, []).append(consume)
        return consume

    def _announce_subscription(self, topic: str) -> None:
        """Take what others send to the topic, and tell them that this node wants it."""
        self._communication.subscribe(
            _SUBJECT + topic, lambda payload, member: self._deliver(topic, payload, member)
        )
        try:
            self._agent.set_properties({_PROPERTY + topic: ""})
        except PostroadError:
            self._communication.unsubscribe(_SUBJECT + topic)
            raise

    def unsubscribe(self, topic: str, consumer: MemberMessageHandler[bytes] | None = None) -> None:
        """Withdraw one subscription of this node to the topic, or all."""
        consumers = self._consumers.get(topic, [])
        kept = [it for it in consumers if consumer is not None and it is not consumer]
        if kept:
            self._consumers[topic] = kept
        elif consumers:
            del self._consumers[topic]
            self._communication.unsubscribe(_SUBJECT + topic)
            self._agent.set_properties({_PROPERTY + topic: None})

    def subscribers(self, topic: str) -> list[Member]:
        """Reachable members that want the topic, this node included."""
        key = _PROPERTY + topic
        return [it for it in self._agent.members if it.is_reachable and key in it.properties]

    async def publish(
        self,
        topic: str,
        message: M,
        *,
        encoder: Encoder[M] = raw_bytes,  # type: ignore[assignment]  # Bytes need no other.
    ) -> SendFailures:
        """Send a message to all subscribers; returns whom it was not sent to.

        A subscriber that does not answer at the moment is left out.
        """
        _check_topic(topic)
        names = [member.name for member in self.subscribers(topic)]
        return await self._communication.multicast(
            names, _SUBJECT + topic, message, encoder=encoder
        )

    async def _deliver(self, topic: str, payload: bytes, member: Member) -> None:
        """Hand a message to each subscriber; one that fails does not keep it from the others."""
        for consumer in list(self._consumers.get(topic, ())):
            try:
                result = consumer(payload, member)
                if isinstance(result, Awaitable):
                    await result
            except Exception as error:
                now = asyncio.get_running_loop().time()
                self._log.log(topic, now, "a subscriber of topic %r failed: %r", topic, error)

    def __repr__(self) -> str:
        return f"<Topics of {self._agent.service.name}: {', '.join(self._consumers) or 'none'}>"


def _check_topic(topic: str) -> None:
    if not topic:
        raise ConfigError("a topic must not be empty")
