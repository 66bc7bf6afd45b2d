"""Messages by topic between nodes."""

from __future__ import annotations

import asyncio

import pytest

from postroad.core.errors import ConfigError, IdempotencyConflictError
from postroad.durable import HandlerRegistration, Message, TopicMessaging, Transaction
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import Station, until_waiting

TOPIC = "platform.session"


class Listener:
    """A handler of a topic."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.registrations: set[HandlerRegistration | None] = set()
        self._stirred = asyncio.Event()

    def __call__(
        self, message: Message, registration: HandlerRegistration | None, tx: Transaction
    ) -> None:
        self.messages.append(message)
        self.registrations.add(registration)
        self._stirred.set()

    async def until(self, count: int) -> list[bytes]:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.messages) < count:
                self._stirred.clear()
                await self._stirred.wait()
        return [message.body for message in self.messages]


async def test_message_reaches_the_handler_of_its_topic(alpha: Station, beta: Station) -> None:
    sender, receiver = TopicMessaging(alpha.mail), TopicMessaging(beta.mail)
    listener = Listener()
    registration = await receiver.add_message_handler(TOPIC, listener)
    message = sender.create_message(TOPIC, b"hello", headers={"a": "b"})
    await sender.send(message, sender.address_of_party("beta"))
    assert await listener.until(1) == [b"hello"]
    assert dict(listener.messages[0].headers) == {"a": "b"}
    assert listener.messages[0].sender == sender.my_address == "alpha"
    assert listener.registrations == {registration}


async def test_message_with_the_same_id_is_sent_once(alpha: Station, beta: Station) -> None:
    sender, receiver = TopicMessaging(alpha.mail), TopicMessaging(beta.mail)
    listener = Listener()
    await receiver.add_message_handler(TOPIC, listener)
    for _ in range(3):
        await sender.send(sender.create_message(TOPIC, b"once", unique_id="N-1-2-3"), "beta")
    with pytest.raises(IdempotencyConflictError):
        await sender.send(sender.create_message(TOPIC, b"twice", unique_id="N-1-2-3"), "beta")
    await sender.send(sender.create_message(TOPIC, b"end"), "beta")
    assert await listener.until(2) == [b"once", b"end"]


async def test_messages_to_one_target_are_in_order(alpha: Station, beta: Station) -> None:
    sender, receiver = TopicMessaging(alpha.mail), TopicMessaging(beta.mail)
    listener = Listener()
    await receiver.add_message_handler(TOPIC, listener)
    for number in range(30):
        key = None if number % 2 else "session 1"
        message = sender.create_message(TOPIC, b"%d" % number)
        await sender.send(message, "beta", sequence_key=key)
    assert await listener.until(30) == [b"%d" % number for number in range(30)]


async def test_message_goes_to_several_nodes_or_to_none(alpha: Station, beta: Station) -> None:
    messaging = [TopicMessaging(station.mail) for station in (alpha, beta)]
    listeners = [Listener(), Listener()]
    for topics, listener in zip(messaging, listeners, strict=True):
        await topics.add_message_handler(TOPIC, listener)
    await messaging[0].send(messaging[0].create_message(TOPIC, b"all"), ["alpha", "beta"])
    for listener in listeners:
        assert await listener.until(1) == [b"all"]
    with pytest.raises(ConfigError):
        await messaging[0].send(messaging[0].create_message(TOPIC, b"no"), ["alpha", ""])
    await until_waiting(alpha.mail, TOPIC, 0)


async def test_sending_in_a_transaction_happens_with_it(alpha: Station, beta: Station) -> None:
    sender, receiver = TopicMessaging(alpha.mail), TopicMessaging(beta.mail)
    listener = Listener()
    await receiver.add_message_handler(TOPIC, listener)
    with pytest.raises(ZeroDivisionError):
        async with alpha.mail.transaction() as tx:
            await sender.send(sender.create_message(TOPIC, b"undone"), "beta", tx=tx)
            raise ZeroDivisionError
    async with alpha.mail.transaction() as tx:
        await sender.send(sender.create_message(TOPIC, b"done"), "beta", tx=tx)
    assert await listener.until(1) == [b"done"]


async def test_topic_has_one_handler_at_a_time(alpha: Station) -> None:
    messaging = TopicMessaging(alpha.mail)
    first, second = Listener(), Listener()
    registration = await messaging.add_message_handler(TOPIC, first)
    with pytest.raises(ConfigError, match="has a handler"):
        await messaging.add_message_handler(TOPIC, second)
    with pytest.raises(ConfigError, match="must not be blank"):
        await messaging.add_message_handler(" ", second)
    await messaging.remove_message_handler(registration)
    await messaging.send(messaging.create_message(TOPIC, b"later"), "alpha")
    await until_waiting(alpha.mail, TOPIC, 1)
    await messaging.add_message_handler(TOPIC, second)
    assert await second.until(1) == [b"later"]
    assert first.messages == []
    # Removed already: the handler that came after it stays.
    await messaging.remove_message_handler(registration)
    await messaging.send(messaging.create_message(TOPIC, b"more"), "alpha")
    assert await second.until(2) == [b"later", b"more"]


@pytest.mark.usefixtures("beta")
async def test_party_is_reachable_while_it_is_known(alpha: Station) -> None:
    messaging = TopicMessaging(alpha.mail)
    assert messaging.is_reachable("alpha") and messaging.is_reachable("beta")
    alpha.directory.set("beta", None)
    assert not messaging.is_reachable("beta")
    assert messaging.address_of_party("beta") == "beta"
    with pytest.raises(ConfigError):
        messaging.address_of_party("")
