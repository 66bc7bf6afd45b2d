"""A message as its cell sees it."""

import pytest

from postroad.cells import CellAddress, CellMessage, CellPath
from postroad.core.errors import ConfigError, MalformedPayloadError
from tests.support.cells.nodes import Inbox
from tests.support.cells.offline_domain import Workshop


def test_body_is_read_from_the_payload() -> None:
    assert CellMessage(b"\x93\x01\x02\x03", "msgpack").body == [1, 2, 3]
    assert CellMessage(b"raw").body == b"raw"
    with pytest.raises(MalformedPayloadError):
        _ = CellMessage(b"\xff", "text").body


async def test_message_has_every_field_of_its_sender() -> None:
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    sender = CellAddress("p", "S1")
    shop.send_nowait("a", "hi", sender=sender, session="s-1", headers={"trace": "t"}, timeout=5)
    [message] = inbox.messages
    assert (message.body, message.sender, message.session) == ("hi", sender, "s-1")
    assert message.headers == {"trace": "t"}
    assert message.wants_reply is False
    assert message.route_name is None
    now = shop.dispatcher.loop.time()
    assert message.deadline is not None and now < message.deadline <= now + 5

    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    shop.send_nowait("a", b"")
    assert inbox.messages[0].deadline is None

    shop, inbox = Workshop(), Inbox()
    shop.connect("C1")
    shop.add("a", inbox)
    request = shop.arrive("a@S1", ttl_ms=1_000)
    [message] = inbox.messages
    assert message.path == CellPath.of("p@S2", "*@C1")
    assert message.sender == CellAddress("p", "S2")
    assert (message.id, message.wants_reply) == (request.id, True)


async def test_queues_and_topics_are_named_and_calls_look_the_same_either_way() -> None:
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox, consume=["work"], subscribe=["news"])
    shop.send_nowait("work", b"1")
    shop.publish("news", b"2")
    shop.send_nowait("a", b"3")
    shop.send_nowait("a@S1", b"4")
    assert [(message.payload, message.route_name) for message in inbox.messages] == [
        (b"1", "work"),
        (b"2", "news"),
        (b"3", None),
        (b"4", None),
    ]

    # The first call goes the long way, the next ones the short way to a cell nearby.
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    for _ in range(2):
        await shop.call("a", b"x", timeout=5, sender=CellAddress("p", "S1"))
    far, near = inbox.messages
    assert far.id != near.id
    for message in (far, near):
        assert (message.payload, message.content_type, message.route_name) == (b"x", "", None)
        assert message.sender == CellAddress("p", "S1")
        assert message.wants_reply
        assert message.deadline is not None
        assert message.path == CellPath.of("p@S1")


async def test_sending_as_a_cell_of_another_domain_is_refused() -> None:
    """Other domains would not believe it."""
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    shop.send_nowait("a", sender=CellAddress("p"))
    with pytest.raises(ConfigError, match="invalid sender p@S2"):
        shop.send_nowait("a", sender=CellAddress("p", "S2"))
    with pytest.raises(ConfigError, match="p@S2"):
        await shop.call("a", "text", sender=CellAddress("p", "S2"))
    assert len(inbox.messages) == 1
