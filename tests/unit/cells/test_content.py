"""What payloads hold."""

from __future__ import annotations

import datetime
import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from postroad.cells.content import (
    BYTES,
    COMMAND,
    JSON,
    MSGPACK,
    TEXT,
    decode_body,
    encode_body,
)
from postroad.core.errors import ConfigError, MalformedPayload
from tests.support.cells.workshop import UnreliableZone


class Point(msgspec.Struct):
    x: int
    y: int


@dataclass
class Pair:
    first: int
    second: str


@pytest.mark.parametrize(
    ("body", "content", "payload"),
    [
        (b"raw", BYTES, b"raw"),
        (bytearray(b"raw"), BYTES, b"raw"),
        (memoryview(b"raw")[1:], BYTES, b"aw"),
        (memoryview(b"abcdef")[::2], BYTES, b"ace"),
        (b"", BYTES, b""),
        (None, BYTES, b""),
        ("größe", TEXT, "größe".encode()),
        ("", TEXT, b""),
    ],
)
def test_bytes_and_text_stay_what_they_are(body: Any, content: str, payload: bytes) -> None:
    assert encode_body(body) == (content, payload)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (0, 0),
        (True, True),
        (-1.5, -1.5),
        ([1, "two", None], [1, "two", None]),
        ({"a": {"b": [b"c"]}}, {"a": {"b": [b"c"]}}),
        ((1, 2), [1, 2]),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Pair(1, "b"), {"first": 1, "second": "b"}),
    ],
)
def test_plain_values_come_back(body: Any, read: Any) -> None:
    content, payload = encode_body(body)
    assert content == MSGPACK
    assert decode_body(content, payload) == read


def test_text_comes_back_as_text_and_bytes_as_bytes() -> None:
    assert decode_body(*encode_body("größe")) == "größe"
    assert decode_body(*encode_body(b"\xff")) == b"\xff"
    assert decode_body(*encode_body(None)) == b""


def test_json_is_read() -> None:
    assert decode_body(JSON, b'{"a": [1]}') == {"a": [1]}


def make_deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "body",
    [
        object(),
        "\ud800",
        1 << 70,
        {"a": lambda: None},
        make_deep(),
        datetime.datetime(2020, 1, 1, tzinfo=UnreliableZone()),
    ],
    ids=["object", "surrogate", "huge", "function", "deep", "raising"],
)
def test_what_cannot_be_sent_is_refused(body: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be sent"):
        encode_body(body)


@pytest.mark.parametrize(
    ("content", "payload"),
    [
        (TEXT, b"\xff"),
        (COMMAND, b"\xff"),
        (JSON, b"{"),
        (JSON, b"\xff"),
        (JSON, b"[" * 100_000),
        (MSGPACK, b""),
        (MSGPACK, b"\xc1"),
        (MSGPACK, b"\x91" * 100_000),
        (MSGPACK, b"\xd7\xff" + b"\xff" * 8),
        ("pickle", pickle.dumps({})),
        ("unknown", b""),
    ],
)
def test_what_is_not_what_it_says_is_malformed(content: str, payload: bytes) -> None:
    with pytest.raises(MalformedPayload):
        decode_body(content, payload)


def test_the_error_names_the_content() -> None:
    with pytest.raises(MalformedPayload, match="'pickle' is not known; known are text"):
        decode_body("pickle", b"")
    with pytest.raises(MalformedPayload, match="no json"):
        decode_body(JSON, b"{")
