"""Requests that tell the span they belong to."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import MalformedFrameError
from postroad.core.tracing import SpanContext
from postroad.wire.codecs import Version3Codec
from postroad.wire.codecs.version3 import (
    COMPRESSED,
    ONE_WAY,
    TRACE_BYTES_MAX,
    TRACED,
    encode_trace_context,
    split_trace_context,
)
from postroad.wire.compression import load_algorithm
from postroad.wire.frames import Frame, RequestFrame
from postroad.wire.hello import decode_hello, encode_hello
from tests.support.wire.pairs import make_config, version3_frame

LIMIT = 100_000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = SpanContext(TRACE, SPAN)
ENCODED = bytes.fromhex(TRACE + SPAN) + b"\x01\x00\x00"


def encode(payload: bytes, *, is_packed: bool = False, one_way: bool = False) -> bytes:
    out: list[bytes] = []
    codec(is_packed).encode_request(out, 7, "echo", payload, 5, one_way, CONTEXT)
    return b"".join(out)


def decode(data: bytes, *, is_packed: bool = False) -> Frame:
    frames: list[Frame] = []
    assert codec(is_packed).decode(data, frames) == len(data)
    (frame,) = frames
    return frame


def codec(is_packed: bool) -> Version3Codec:
    codec = Version3Codec(LIMIT)
    codec.compression = load_algorithm("zlib") if is_packed else None
    return codec


def test_the_context_stands_before_the_payload() -> None:
    expected = version3_frame(1, b"echo" + ENCODED + b"hi", flags=TRACED, short=4, word=5, id=7)
    assert encode(b"hi") == expected
    assert decode(expected) == RequestFrame(7, "echo", b"hi", 5, trace=CONTEXT)

    context = msgspec.structs.replace(CONTEXT, flags=0, tracestate="vendor=1")
    assert split_trace_context(encode_trace_context(context) + b"rest", 1) == (context, b"rest")

    frame = ENCODED[:-2] + b"\x00\x02\xff\xffhi"
    assert split_trace_context(frame, 1) == (CONTEXT, b"hi")


@pytest.mark.parametrize("one_way", [False, True])
def test_with_other_flags(one_way: bool) -> None:
    payload = b"tea " * 5_000
    data = encode(payload, is_packed=True, one_way=one_way)
    assert data[5] == TRACED | COMPRESSED | (ONE_WAY if one_way else 0)
    assert len(data) < len(payload)
    assert decode(data, is_packed=True) == RequestFrame(7, "echo", payload, 5, one_way, CONTEXT)


def test_trace_context_invalid_is_ignored(subtests: pytest.Subtests) -> None:
    for encoded in [
        bytes(27),
        bytes.fromhex("00" * 16 + SPAN) + b"\x01\x00\x00",
        bytes.fromhex(TRACE + "00" * 8) + b"\x01\x00\x00",
    ]:
        with subtests.test(encoded=encoded):
            frame = version3_frame(1, b"echo" + encoded + b"hi", flags=TRACED, short=4)
            assert decode(frame) == RequestFrame(0, "echo", b"hi")

    for body in [b"", ENCODED[:-1], ENCODED[:-2] + b"\x00\x01"]:
        with subtests.test(body=body):
            frames: list[Frame] = []
            data = version3_frame(1, b"echo" + body, flags=TRACED, short=4, id=9)
            with pytest.raises(MalformedFrameError, match="request 9 is shorter than its trace"):
                Version3Codec(LIMIT).decode(data, frames)


@given(st.binary(max_size=700))
def test_any_bytes_are_a_context_or_malformed(body: bytes) -> None:
    try:
        context, rest = split_trace_context(body, 1)
    except MalformedFrameError:
        return
    assert body.endswith(rest)
    if context is not None and context.tracestate:
        assert split_trace_context(encode_trace_context(context) + rest, 1) == (context, rest)


def test_a_context_is_no_longer_than_allowed_and_announced() -> None:
    longest = msgspec.structs.replace(CONTEXT, tracestate="a=" + "x" * 510)
    assert len(encode_trace_context(longest)) == TRACE_BYTES_MAX
    longer = msgspec.structs.replace(CONTEXT, tracestate="a=" + "x" * 5_000)
    assert len(encode_trace_context(longer)) == TRACE_BYTES_MAX

    hello = make_config().hello
    reader = msgspec.structs.replace(hello, accepts_traces=True)
    assert encode_hello(reader) == encode_hello(hello) + bytes.fromhex("000e 0001 01")
    assert decode_hello(encode_hello(reader)) == reader
