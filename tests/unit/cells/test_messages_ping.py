"""Answers to pings."""

import msgspec
import pytest

from postroad.cells import CellMessage, CellPath
from postroad.cells.addresses import HOPS_MAX
from postroad.cells.messages import PING, PongBody, build_pong, decode_pong, encode_body
from postroad.core.errors import MalformedPayloadError


def test_ping_reply_lists_the_path() -> None:
    way = CellPath.of("System@S1", "*@S1", "*@C1")
    content_type, payload = encode_body(build_pong(CellMessage(b"", PING, path=way)))
    assert content_type == "msgpack"
    assert decode_pong(payload) == way


def test_other_payload_is_a_malformed_ping_reply(subtests: pytest.Subtests) -> None:
    for payload in [
        b"",
        b"\xc1",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode({"way": [1]}),
        msgspec.msgpack.encode(PongBody(("a@b@c",))),
        msgspec.msgpack.encode(PongBody(("x" * 1_000,))),
        msgspec.msgpack.encode(PongBody(("a@S1",) * (HOPS_MAX + 1))),
        b"\x81\xa3way" + b"\x91" * 100_000,
    ]:
        refusal = pytest.raises(MalformedPayloadError, match="payload is no reply to a ping")
        with subtests.test(payload=payload), refusal:
            decode_pong(payload)
