"""What payloads hold."""

import datetime
import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from postroad.cells.messages import BYTES, COMMAND, JSON, MSGPACK, TEXT, decode_body, encode_body
from postroad.core.errors import ConfigError, MalformedPayloadError
from tests.support.cells.offline_domain import UnreliableZone


class Point(msgspec.Struct):
    x: int
    y: int


@dataclass
class Pair:
    first: int
    second: str


def test_bytes_text_and_plain_values_come_back(subtests: pytest.Subtests) -> None:
    encoded: list[tuple[Any, str, bytes]] = [
        (b"raw", BYTES, b"raw"),
        (bytearray(b"raw"), BYTES, b"raw"),
        (memoryview(b"raw")[1:], BYTES, b"aw"),
        (memoryview(b"abcdef")[::2], BYTES, b"ace"),
        (b"", BYTES, b""),
        (None, BYTES, b""),
        ("größe", TEXT, "größe".encode()),
        ("", TEXT, b""),
    ]
    for body, content_type, payload in encoded:
        assert encode_body(body) == (content_type, payload), content_type

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
            content_type, payload = encode_body(body)
            assert content_type == MSGPACK
            assert decode_body(content_type, payload) == read

    assert decode_body(*encode_body("größe")) == "größe"
    assert decode_body(*encode_body(b"\xff")) == b"\xff"
    assert decode_body(*encode_body(None)) == b""

    assert decode_body(JSON, b'{"a": [1]}') == {"a": [1]}


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
            encode_body(body)

    for content_type, payload in [
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
    ]:
        with subtests.test(content_type=content_type), pytest.raises(MalformedPayloadError):
            decode_body(content_type, payload)

    with pytest.raises(
        MalformedPayloadError, match="unknown content type 'pickle'; supported: text"
    ):
        decode_body("pickle", b"")
    with pytest.raises(MalformedPayloadError, match="payload is not valid json"):
        decode_body(JSON, b"{")
