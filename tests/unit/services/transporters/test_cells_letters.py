"""Packets that travel together."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import MalformedPayloadError
from postroad.services.kinds import GOSSIP, Kind
from postroad.services.transporters.cells_letters import KINDS, WORDS, decode_letter, encode_letter
from tests.support.cases import each


def test_all_kinds_but_gossip_and_unknown_words_are_carried() -> None:
    assert set(WORDS) == set(Kind) - GOSSIP
    assert {KINDS[word] for word in WORDS.values()} == set(WORDS)
    packets = [("REQ", b"1"), ("NEW", b"2"), ("RES", b"3")]
    assert decode_letter(encode_letter(packets)) == packets


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.binary()), max_size=20))
def test_letter_is_read_as_it_was_written(packets: list[tuple[str, bytes]]) -> None:
    assert decode_letter(encode_letter(packets)) == packets


@each(
    b"",
    b"\xc1",
    b"no letter",
    msgspec.msgpack.encode({"REQ": b"x"}),
    msgspec.msgpack.encode(["REQ", b"x"]),
    msgspec.msgpack.encode([["REQ"]]),
    msgspec.msgpack.encode([["REQ", b"x", 1]]),
    msgspec.msgpack.encode([["REQ", "x"]]),
    msgspec.msgpack.encode([[1, b"x"]]),
    msgspec.msgpack.encode([["REQ", b"x"]])[:-1],
    msgspec.msgpack.encode([["REQ", b"x"]]) + b"\x00",
    b"\x91\x92\xa1\xff\xc4\x00",
    b"\x91" * 10_000,
    b"\xdd\xff\xff\xff\xff",
)
def test_what_is_no_letter_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedPayloadError, match="no letter"):
        decode_letter(data)


@given(st.binary(max_size=200))
def test_garbage_is_a_letter_or_refused(data: bytes) -> None:
    try:
        packets = decode_letter(data)
    except MalformedPayloadError:
        return
    assert all(type(word) is str and type(content) is bytes for word, content in packets)
