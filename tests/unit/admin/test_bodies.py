"""What is in a message, as people can read it."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.admin.bodies import SHOWN_MAX, Body, show_body, write_body
from tests.support.cases import each


@each(
    (b'{"a": 1}', '{"a": 1}', "json"),
    (b"17", "17", "json"),
    (b"hello", "hello", "text"),
    (b"", "", "text"),
    ("Grüße\n".encode(), "Grüße\n", "text"),
    (msgspec.msgpack.encode({"a": [1, None]}), '{"a":[1,null]}', "msgpack"),
    (msgspec.msgpack.encode({"at": b"\x00"}), '{"at":"AA=="}', "msgpack"),
    (b"\xff\x00", "ff00", "hex"),
    (b"\x01", "01", "hex"),
    (b"a\x00b", "610062", "hex"),
    (msgspec.msgpack.encode({(1, 2): 3}), "8192010203", "hex"),
    (b"\x91" * 5_000 + b"\x01", "91" * (SHOWN_MAX // 4), "hex"),
)
def test_bodies_are_shown_as_what_they_are(body: bytes, text: str, encoding: str) -> None:
    shown = show_body(body)
    assert shown.encoding == encoding
    assert shown.text.startswith(text) if len(text) > 100 else shown.text == text


@each(SHOWN_MAX, SHOWN_MAX * 3, 2 * 1024 * 1024)
def test_long_ones_are_cut(count: int) -> None:
    assert show_body(b"x" * count) == Body("x" * SHOWN_MAX, "text")
    shown = show_body("ä".encode() * count)
    assert shown.encoding == "text"
    assert 0 < len(shown.text) <= SHOWN_MAX
    assert show_body(b"\xff" * count) == Body("ff" * (SHOWN_MAX // 2), "hex")


@given(st.binary(max_size=200))
def test_every_body_can_be_shown_and_sent_as_json(body: bytes) -> None:
    shown = show_body(body)
    assert shown.encoding in {"json", "text", "msgpack", "hex"}
    assert msgspec.json.decode(msgspec.json.encode(shown.text)) == shown.text


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=9), st.lists, max_leaves=9))
def test_what_operators_send_is_what_they_see(said: object) -> None:
    shown = show_body(write_body(said))
    if not isinstance(said, str):
        assert shown.encoding == "json"
        assert msgspec.json.decode(shown.text) == said
    elif shown.encoding in {"json", "text"}:
        assert shown.text == said
