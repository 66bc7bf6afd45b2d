"""A message as its cell sees it: its fields, its body, and the answer to a ping."""

import datetime
import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from postroad.cells import CellAddress, CellMessage, CellPath, messages
from postroad.cells.addresses import HOPS_MAX
from postroad.core.errors import ConfigError, MalformedPayloadError
from tests.support.cells.nodes import Inbox
from tests.support.cells.offline_domain import UnreliableZone, Workshop


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


class Point(msgspec.Struct):
    x: int
    y: int


@dataclass
class Pair:
    first: int
    second: str


def test_bytes_text_and_plain_values_come_back(subtests: pytest.Subtests) -> None:
    encoded: list[tuple[Any, str, bytes]] = [
        (b"raw", messages.BYTES, b"raw"),
        (bytearray(b"raw"), messages.BYTES, b"raw"),
        (memoryview(b"raw")[1:], messages.BYTES, b"aw"),
        (memoryview(b"abcdef")[::2], messages.BYTES, b"ace"),
        (b"", messages.BYTES, b""),
        (None, messages.BYTES, b""),
        ("größe", messages.TEXT, "größe".encode()),
        ("", messages.TEXT, b""),
    ]
    for body, content_type, payload in encoded:
        assert messages.encode_body(body) == (content_type, payload), content_type

    for body, read in [
        (0, 0),
        (True, True),
        (-1.5, -1.5),
        ([1, "two", None], [1, "two", None]),
        ({"a": {"b": [b"c"]}}, {"a": {"b": [b"c"]}}),
        ((1, 2), [1, 2]),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Pair(1, "b"), {"first": 1, "second": "b"}),
    ]:
        with subtests.test(body=body):
            content_type, payload = messages.encode_body(body)
            assert content_type == messages.MSGPACK
            assert messages.decode_body(content_type, payload) == read

    assert messages.decode_body(*messages.encode_body("größe")) == "größe"
    assert messages.decode_body(*messages.encode_body(b"\xff")) == b"\xff"
    assert messages.decode_body(*messages.encode_body(None)) == b""

    assert messages.decode_body(messages.JSON, b'{"a": [1]}') == {"a": [1]}


def make_deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def test_unencodable_or_mislabelled_body_is_refused(subtests: pytest.Subtests) -> None:
    for body in [
        object(),
        "\ud800",
        1 << 70,
        {"a": lambda: None},
        make_deep(),
        datetime.datetime(2020, 1, 1, tzinfo=UnreliableZone()),
    ]:
        with subtests.test(body=body), pytest.raises(ConfigError, match="cannot encode a body"):
            messages.encode_body(body)

    for content_type, payload in [
        (messages.TEXT, b"\xff"),
        (messages.COMMAND, b"\xff"),
        (messages.JSON, b"{"),
        (messages.JSON, b"\xff"),
        (messages.JSON, b"[" * 100_000),
        (messages.MSGPACK, b""),
        (messages.MSGPACK, b"\xc1"),
        (messages.MSGPACK, b"\x91" * 100_000),
        (messages.MSGPACK, b"\xd7\xff" + b"\xff" * 8),
        ("pickle", pickle.dumps({})),
        ("unknown", b""),
    ]:
        with subtests.test(content_type=content_type), pytest.raises(MalformedPayloadError):
            messages.decode_body(content_type, payload)

    with pytest.raises(
        MalformedPayloadError, match="unknown content type 'pickle'; supported: text"
    ):
        messages.decode_body("pickle", b"")
    with pytest.raises(MalformedPayloadError, match="payload is not valid json"):
        messages.decode_body(messages.JSON, b"{")


def test_ping_reply_lists_the_path() -> None:
    way = CellPath.of("System@S1", "*@S1", "*@C1")
    content_type, payload = messages.encode_body(
        messages.build_pong(CellMessage(b"", messages.PING, path=way))
    )
    assert content_type == "msgpack"
    assert messages.decode_pong(payload) == way


def test_other_payload_is_a_malformed_ping_reply(subtests: pytest.Subtests) -> None:
    for payload in [
        b"",
        b"\xc1",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode({"way": [1]}),
        msgspec.msgpack.encode(messages.PongBody(("a@b@c",))),
        msgspec.msgpack.encode(messages.PongBody(("x" * 1_000,))),
        msgspec.msgpack.encode(messages.PongBody(("a@S1",) * (HOPS_MAX + 1))),
        b"\x81\xa3way" + b"\x91" * 100_000,
    ]:
        refusal = pytest.raises(MalformedPayloadError, match="payload is no reply to a ping")
        with subtests.test(payload=payload), refusal:
            messages.decode_pong(payload)
