"""Frames of version 3, with and without a trace context."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import FrameTooLargeError, LocalProtocolError, MalformedFrameError
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.core.tracing import SpanContext
from postroad.wire.codecs import Version3Codec
from postroad.wire.codecs.version3 import (
    COMPRESSED,
    GOODBYE_BYTES_MAX,
    ONE_WAY,
    TRACE_BYTES_MAX,
    TRACED,
    encode_trace_context,
    split_trace_context,
)
from postroad.wire.compression import load_algorithm
from postroad.wire.frames import (
    CancelFrame,
    Frame,
    GoodbyeFrame,
    PingFrame,
    PongFrame,
    ProofFrame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from postroad.wire.hello import decode_hello, encode_hello
from tests.support.wire.pairs import hello_frame, make_config, version3_frame

LIMIT = 100_000
HELLO = make_config().hello
ID_MAX = 2**64 - 1
WORD_MAX = 2**32 - 1


def decode(data: bytes, codec: Version3Codec | None = None) -> list[Frame]:
    frames: list[Frame] = []
    assert (codec or Version3Codec(LIMIT)).decode(data, frames) == len(data)
    return frames


def encode(frame: Frame, codec: Version3Codec | None = None) -> bytes:
    out: list[bytes] = []
    (codec or Version3Codec(LIMIT)).encode(out, frame)
    return b"".join(out)


def compressing(name: str = "zlib") -> Version3Codec:
    codec = Version3Codec(LIMIT)
    codec.compression = load_algorithm(name)
    return codec


def test_layout() -> None:
    layouts: list[tuple[Frame, bytes]] = [
        (RequestFrame(7, "echo", b"hi"), version3_frame(1, b"echohi", short=4, id=7)),
        (RequestFrame(ID_MAX, "", b""), version3_frame(1, id=ID_MAX)),
        (
            RequestFrame(0, "é", b"", WORD_MAX, one_way=True),
            version3_frame(1, b"\xc3\xa9", flags=1, short=2, word=WORD_MAX),
        ),
        (ReplyFrame(7, ReplyStatus.OK, b"hi"), version3_frame(2, b"hi", id=7)),
        (
            ReplyFrame(ID_MAX, ReplyStatus.HANDLER_FAILED, b"boom", 3800, retryable=True),
            version3_frame(2, b"boom", flags=4, short=2, word=3800, id=ID_MAX),
        ),
        (ReplyFrame(1, ReplyStatus.STOPPING, b""), version3_frame(2, short=4, id=1)),
        (CancelFrame(7), version3_frame(4, id=7)),
        (PingFrame(7), version3_frame(5, id=7)),
        (PongFrame(7), version3_frame(6, id=7)),
        (GoodbyeFrame(3100, "stopping"), version3_frame(7, b"stopping", word=3100)),
        (HELLO, hello_frame(HELLO)),
    ]
    for frame, data in layouts:
        assert encode(frame) == data, data
        assert decode(data) == [frame], data

    assert encode(RequestFrame(2, "a", b"bc", 3, one_way=True)) == bytes.fromhex(
        "00000013 01 01 0001 00000003 0000000000000002 61 6263"
    )

    codec = Version3Codec(LIMIT)
    assert codec.sender is None
    decode(hello_frame(HELLO), codec)
    assert codec.sender == HELLO.address

    assert decode(version3_frame(2, b"x", flags=0xF8, id=1)) == [ReplyFrame(1, 0, b"x")]


def test_control_frames_are_refused_by_their_header(subtests: pytest.Subtests) -> None:
    for length in [0, 1, 15]:
        refusal = pytest.raises(MalformedFrameError, match=f"frame of {length} bytes is shorter")
        with subtests.test(length=length), refusal:
            decode(struct.pack(">IBBHIQ", length, 1, 0, 0, 0, 0))

    for kind in [0, 9, 10, 255]:
        refusal = pytest.raises(MalformedFrameError, match=f"unknown frame type {kind}")
        with subtests.test(kind=kind), refusal:
            decode(version3_frame(kind, bytes(100))[:20])

    for kind, body_bytes_max in [(3, HELLO_BYTES_MAX), (4, 0), (5, 0), (6, 0), (7, 1_024), (8, 32)]:
        too_large = pytest.raises(FrameTooLargeError, match=f"{body_bytes_max} are accepted")
        with subtests.test(kind=kind), too_large:
            decode(version3_frame(kind, bytes(body_bytes_max + 1))[:20])

    for kind in [0, 9, 255]:
        for flags in [0, 1, 7]:
            refusal = pytest.raises(MalformedFrameError, match=f"unknown frame type {kind}")
            with subtests.test(kind=kind, flags=flags), refusal:
                decode(version3_frame(kind, flags=flags, id=1))

    with pytest.raises(MalformedFrameError, match="proof has 31 bytes"):
        decode(version3_frame(8, bytes(31)))

    # A small limit for messages must not keep the sides from introducing themselves.
    introductions: list[Frame] = [HELLO, ProofFrame(bytes(32)), GoodbyeFrame(1, "r" * 1_000)]
    for frame in introductions:
        assert decode(encode(frame), Version3Codec(16)) == [frame], frame


@pytest.mark.parametrize(("short", "size"), [(5, 4), (32_768, 40_000), (65_535, 10)])
@pytest.mark.parametrize("flags", [0, 1])
def test_a_subject_of_impossible_length_is_malformed(short: int, size: int, flags: int) -> None:
    with pytest.raises(MalformedFrameError, match=r"request 7 .* subject") as caught:
        decode(version3_frame(1, bytes(size), flags=flags, short=short, id=7))
    assert caught.value.request_id == 7


def test_subjects_are_remembered_within_bounds_and_not_mistaken() -> None:
    codec = Version3Codec(LIMIT)
    subjects = [f"subject {number}" for number in range(1_000)] + ["s" * 129, "echo", "echo"]
    stream = b"".join(
        version3_frame(1, subject.encode(), short=len(subject)) for subject in subjects
    )
    assert decode(stream, codec) == [RequestFrame(0, subject, b"") for subject in subjects]
    assert 0 < len(codec._subjects) <= 64
    assert max(map(len, codec._subjects)) <= 128

    codec = Version3Codec(LIMIT)
    stream = version3_frame(1, b"abc", short=2) + version3_frame(1, b"abc", short=3)
    expected = [RequestFrame(0, "ab", b"c"), RequestFrame(0, "abc", b"")]
    assert decode(stream + stream, codec) == expected * 2
    frames: list[Frame] = []
    codec.decode(memoryview(stream), frames)
    assert frames == expected


def test_a_goodbye_is_text_and_cut_between_characters() -> None:
    with pytest.raises(MalformedFrameError, match="goodbye is not valid UTF-8"):
        decode(version3_frame(7, b"\xff"))

    reason = "x" + "é" * GOODBYE_BYTES_MAX
    (frame,) = decode(encode(GoodbyeFrame(1, reason)))
    assert isinstance(frame, GoodbyeFrame)
    assert len(frame.reason.encode()) == GOODBYE_BYTES_MAX - 1
    assert reason.startswith(frame.reason)

    with pytest.raises(LocalProtocolError, match="version 3 has no frame for str"):
        encode("text")  # type: ignore[arg-type]  # What a wrong caller would do.


def test_agreed_compression_shrinks_and_restores_large_payloads(subtests: pytest.Subtests) -> None:
    large: list[Frame] = [
        RequestFrame(7, "echo", b"a" * 5_000, 250, one_way=True),
        ReplyFrame(7, ReplyStatus.HANDLER_FAILED, b"a" * 5_000, 3800, retryable=True),
    ]
    for name in ["zlib", "zstd"]:
        for frame in large:
            with subtests.test(name=name, frame=frame):
                data = encode(frame, compressing(name))
                assert len(data) < 500
                assert data[5] & 2
                assert decode(data, compressing(name)) == [frame]

    small: list[Frame] = [RequestFrame(7, "echo", b"small"), ReplyFrame(7, 0, b"small")]
    for frame in small:
        assert encode(frame, compressing()) == encode(frame), frame


def test_a_payload_compressed_without_agreement_or_wrongly_is_refused(
    subtests: pytest.Subtests,
) -> None:
    data = encode(RequestFrame(7, "echo", b"a" * 5_000), compressing())
    with pytest.raises(MalformedFrameError, match="no compression was negotiated") as caught:
        decode(data)
    assert caught.value.request_id == 7

    with pytest.raises(MalformedFrameError, match="no compression was negotiated") as caught:
        decode(encode(ReplyFrame(7, 0, b"a" * 5_000), compressing()))
    assert caught.value.request_id is None

    data = version3_frame(1, b"echo" + struct.pack(">I", 10) + b"junk", flags=2, short=4, id=7)
    with pytest.raises(MalformedFrameError, match="not zlib data") as caught:
        decode(data, compressing())
    assert caught.value.request_id == 7

    for name in ["zlib", "zstd"]:
        with subtests.test(name=name):
            bomb = struct.pack(">I", 10_000_000) + load_algorithm(name).compress(bytes(10_000_000))
            with pytest.raises(FrameTooLargeError, match="10000000 bytes was announced"):
                decode(version3_frame(1, b"echo" + bomb, flags=2, short=4), compressing(name))

    largest = RequestFrame(1, "echo", bytes(LIMIT - 4))
    assert decode(encode(largest, compressing()), compressing()) == [largest]
    with pytest.raises(FrameTooLargeError):
        decode(encode(RequestFrame(1, "echo", bytes(LIMIT - 3)), compressing()), compressing())


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = SpanContext(TRACE, SPAN)
ENCODED = bytes.fromhex(TRACE + SPAN) + b"\x01\x00\x00"


def encode_traced(payload: bytes, *, is_packed: bool = False, one_way: bool = False) -> bytes:
    out: list[bytes] = []
    codec(is_packed).encode_request(out, 7, "echo", payload, 5, one_way, CONTEXT)
    return b"".join(out)


def decode_traced(data: bytes, *, is_packed: bool = False) -> Frame:
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
    assert encode_traced(b"hi") == expected
    assert decode_traced(expected) == RequestFrame(7, "echo", b"hi", 5, trace=CONTEXT)

    context = msgspec.structs.replace(CONTEXT, flags=0, tracestate="vendor=1")
    assert split_trace_context(encode_trace_context(context) + b"rest", 1) == (context, b"rest")

    frame = ENCODED[:-2] + b"\x00\x02\xff\xffhi"
    assert split_trace_context(frame, 1) == (CONTEXT, b"hi")


@pytest.mark.parametrize("one_way", [False, True])
def test_with_other_flags(one_way: bool) -> None:
    payload = b"tea " * 5_000
    data = encode_traced(payload, is_packed=True, one_way=one_way)
    assert data[5] == TRACED | COMPRESSED | (ONE_WAY if one_way else 0)
    assert len(data) < len(payload)
    assert decode_traced(data, is_packed=True) == RequestFrame(
        7, "echo", payload, 5, one_way, CONTEXT
    )


def test_trace_context_invalid_is_ignored(subtests: pytest.Subtests) -> None:
    for encoded in [
        bytes(27),
        bytes.fromhex("00" * 16 + SPAN) + b"\x01\x00\x00",
        bytes.fromhex(TRACE + "00" * 8) + b"\x01\x00\x00",
    ]:
        with subtests.test(encoded=encoded):
            frame = version3_frame(1, b"echo" + encoded + b"hi", flags=TRACED, short=4)
            assert decode_traced(frame) == RequestFrame(0, "echo", b"hi")

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
