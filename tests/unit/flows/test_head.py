"""Heads of flows: their ids, and when they are over."""

import msgspec
import pytest

from postroad.flows.head import Head, Origin, Trouble, parse_id, show_id
from postroad.flows.life import ENDED, Status
from postroad.flows.messages import SessionKey
from postroad.flows.values import Failure
from tests.support.cases import naming


def test_ids_are_sixteen_hexadecimal_characters() -> None:
    for id in (1, 0xDEADBEEF, (1 << 63) - 1):
        assert len(show_id(id)) == 16, id
        assert parse_id(show_id(id)) == id, id
    for text in ("", "flow", "12 34", "0x7", "-5", "f" * 16, "0" * 17):
        with naming(text), pytest.raises(ValueError, match="is no id of a flow"):
            parse_id(text)


def test_head_comes_back_from_its_bytes() -> None:
    for status in Status:
        head = Head(id=1, name="pay", version=1, status=status, entropy=b"", started_ms=0)
        assert head.is_over == (status in ENDED), status
    head = Head(
        id=(1 << 63) - 1,
        name="pay",
        version=3,
        status=Status.PARKED,
        entropy=b"0123456789abcdef",
        started_ms=1,
        arguments=b"\x92",
        client_id="order-7",
        origin=Origin("beta", SessionKey(5, 1), "ask", 2, "shop"),
        trouble=Trouble("e1", Failure("builtins:ValueError", "x", None), 5, "line 1"),
        result=b"\x01",
        progress="half",
        wake_ms=0,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(head), type=Head) == head
