"""Frames of version 3."""

import struct

import pytest

from postroad.core.errors import FrameTooLarge, LocalProtocolError, MalformedFrame
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.wire.codecs import Version3Codec
from postroad.wire.codecs.version3 import GOODBYE_BYTES_MAX
from postroad.wire.compression import load_algorithm
from postroad.wire.frames import Cancel, Frame, Goodbye, Ping, Pong, Reply, Request, Status
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


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (Request(7, "echo", b"hi"), version3_frame(1, b"echohi", short=4, id=7)),
        (Request(ID_MAX, "", b""), version3_frame(1, id=ID_MAX)),
        (
            Request(0, "é", b"", WORD_MAX, one_way=True),
            version3_frame(1, b"\xc3\xa9", flags=1, short=2, word=WORD_MAX),
        ),
        (Reply(7, Status.OK, b"hi"), version3_frame(2, b"hi", id=7)),
        (
            Reply(ID_MAX, Status.HANDLER_FAILED, b"boom", 3800, retryable=True),
            version3_frame(2, b"boom", flags=4, short=2, word=3800, id=ID_MAX),
        ),
        (Reply(1, Status.STOPPING, b""), version3_frame(2, short=4, id=1)),
        (Cancel(7), version3_frame(4, id=7)),
        (Ping(7), version3_frame(5, id=7)),
        (Pong(7), version3_frame(6, id=7)),
        (Goodbye(3100, "stopping"), version3_frame(7, b"stopping", word=3100)),
        (HELLO, hello_frame(HELLO)),
    ],
)
def test_layout(frame: Frame, data: bytes) -> None:
    assert encode(frame) == data
    assert decode(data) == [frame]


def test_the_header_byte_by_byte() -> None:
    assert encode(Request(2, "a", b"bc", 3, one_way=True)) == bytes.fromhex(
        "00000013 01 01 0001 00000003 0000000000000002 61 6263"
    )


def test_a_hello_tells_the_sender() -> None:
    codec = Version3Codec(LIMIT)
    assert codec.sender is None
    decode(hello_frame(HELLO), codec)
    assert codec.sender == HELLO.address


@pytest.mark.parametrize("frame", [Request(1, "echo", bytes(70_000)), Reply(1, 0, bytes(70_000))])
def test_a_large_payload_is_not_copied(frame: Request | Reply) -> None:
    out: list[bytes] = []
    Version3Codec(LIMIT).encode(out, frame)
    assert any(piece is frame.payload for piece in out)
    assert decode(b"".join(out)) == [frame]


def test_need_leads_to_the_end_of_a_frame() -> None:
    codec = Version3Codec(LIMIT)
    data = version3_frame(1, b"echo" + bytes(100), short=4)
    frames: list[Frame] = []
    assert codec.decode(data[:19], frames) == 0
    assert codec.need == 20
    assert codec.decode(data[:20], frames) == 0
    assert codec.need == len(data)
    assert codec.decode(data + data[:5], frames) == len(data)
    assert codec.need == 20
    assert len(frames) == 1


@pytest.mark.parametrize("length", [0, 1, 15])
def test_a_length_shorter_than_the_header(length: int) -> None:
    with pytest.raises(MalformedFrame, match=f"a frame of {length} bytes is shorter"):
        decode(struct.pack(">IBBHIQ", length, 1, 0, 0, 0, 0))


@pytest.mark.parametrize("length", [16 + LIMIT + 1, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("kind", [1, 2])
def test_a_frame_over_the_limit(kind: int, length: int) -> None:
    with pytest.raises(FrameTooLarge, match=f"{length - 16} bytes was announced, {LIMIT}"):
        decode(struct.pack(">IBBHIQ", length, kind, 0, 0, 0, 0))


def test_the_limit_counts_payload_and_subject_together() -> None:
    assert decode(version3_frame(1, bytes(LIMIT), short=4))
    with pytest.raises(FrameTooLarge):
        decode(version3_frame(1, bytes(LIMIT + 1), short=4))


@pytest.mark.parametrize("kind", [0, 8, 9, 255])
def test_an_unknown_type_is_refused_by_its_header(kind: int) -> None:
    with pytest.raises(MalformedFrame, match=f"unknown frame type {kind}"):
        decode(version3_frame(kind, bytes(100))[:20])


@pytest.mark.parametrize(
    ("kind", "body_bytes_max"), [(3, HELLO_BYTES_MAX), (4, 0), (5, 0), (6, 0), (7, 1_024)]
)
def test_an_oversized_control_frame_is_refused_by_its_header(
    kind: int, body_bytes_max: int
) -> None:
    with pytest.raises(FrameTooLarge, match=f"{body_bytes_max} are accepted"):
        decode(version3_frame(kind, bytes(body_bytes_max + 1))[:20])


@pytest.mark.parametrize("frame", [HELLO, Goodbye(1, "r" * 1_000)])
def test_control_frames_do_not_count_against_the_frame_limit(frame: Frame) -> None:
    """A small limit for messages must not keep the sides from introducing themselves."""
    assert decode(encode(frame), Version3Codec(16)) == [frame]


@pytest.mark.parametrize(("short", "size"), [(5, 4), (32_768, 40_000), (65_535, 10)])
def test_a_subject_of_impossible_length(short: int, size: int) -> None:
    with pytest.raises(MalformedFrame, match=r"request 7 .* subject") as caught:
        decode(version3_frame(1, bytes(size), short=short, id=7))
    assert caught.value.request_id == 7


@pytest.mark.parametrize(("short", "size"), [(5, 4), (32_768, 40_000), (65_535, 10)])
def test_a_subject_of_impossible_length_with_a_flag(short: int, size: int) -> None:
    with pytest.raises(MalformedFrame, match=r"request 7 .* subject") as caught:
        decode(version3_frame(1, bytes(size), flags=1, short=short, id=7))
    assert caught.value.request_id == 7


def test_the_longest_subject() -> None:
    data = version3_frame(1, b"s" * 32_767, short=32_767)
    assert decode(data) == [Request(0, "s" * 32_767, b"")]


def test_subjects_are_remembered_within_bounds() -> None:
    codec = Version3Codec(LIMIT)
    subjects = [f"subject {number}" for number in range(1_000)] + ["s" * 129, "echo", "echo"]
    stream = b"".join(
        version3_frame(1, subject.encode(), short=len(subject)) for subject in subjects
    )
    assert decode(stream, codec) == [Request(0, subject, b"") for subject in subjects]
    assert 0 < len(codec._subjects) <= 64
    assert max(map(len, codec._subjects)) <= 128


def test_a_remembered_subject_is_not_mistaken_for_another() -> None:
    codec = Version3Codec(LIMIT)
    stream = version3_frame(1, b"abc", short=2) + version3_frame(1, b"abc", short=3)
    expected = [Request(0, "ab", b"c"), Request(0, "abc", b"")]
    assert decode(stream + stream, codec) == expected * 2
    frames: list[Frame] = []
    codec.decode(memoryview(stream), frames)
    assert frames == expected


def test_a_subject_that_is_no_text_is_known_by_its_request() -> None:
    with pytest.raises(MalformedFrame, match="subject is not valid UTF-8") as caught:
        decode(version3_frame(1, b"\xffpayload", short=1, id=7))
    assert caught.value.request_id == 7


@pytest.mark.parametrize("status", [5, 255, 65_535])
def test_an_unknown_status(status: int) -> None:
    with pytest.raises(MalformedFrame, match=f"reply 7 has unknown status {status}"):
        decode(version3_frame(2, short=status, id=7))


def test_a_goodbye_that_is_no_text() -> None:
    with pytest.raises(MalformedFrame, match="goodbye is not valid UTF-8"):
        decode(version3_frame(7, b"\xff"))


@pytest.mark.parametrize("kind", [0, 8, 255])
@pytest.mark.parametrize("flags", [0, 1, 7])
def test_an_unknown_type_is_no_frame_of_another_type(kind: int, flags: int) -> None:
    with pytest.raises(MalformedFrame, match=f"unknown frame type {kind}"):
        decode(version3_frame(kind, flags=flags, id=1))


def test_unknown_flags_are_left_to_later_versions() -> None:
    assert decode(version3_frame(2, b"x", flags=0xF8, id=1)) == [Reply(1, 0, b"x")]


def test_a_long_goodbye_is_cut_between_characters() -> None:
    reason = "x" + "é" * GOODBYE_BYTES_MAX
    (frame,) = decode(encode(Goodbye(1, reason)))
    assert isinstance(frame, Goodbye)
    assert len(frame.reason.encode()) == GOODBYE_BYTES_MAX - 1
    assert reason.startswith(frame.reason)


def test_what_is_no_frame_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError, match="version 3 has no frame for str"):
        encode("text")  # type: ignore[arg-type]  # What a wrong caller would do.


# Compression.


@pytest.mark.parametrize("name", ["zlib", "zstd"])
@pytest.mark.parametrize(
    "frame",
    [
        Request(7, "echo", b"a" * 5_000, 250, one_way=True),
        Reply(7, Status.HANDLER_FAILED, b"a" * 5_000, 3800, retryable=True),
    ],
)
def test_agreed_compression_shrinks_and_restores(name: str, frame: Frame) -> None:
    data = encode(frame, compressing(name))
    assert len(data) < 500
    assert data[5] & 2
    assert decode(data, compressing(name)) == [frame]


@pytest.mark.parametrize("frame", [Request(7, "echo", b"small"), Reply(7, 0, b"small")])
def test_small_payloads_stay_as_they_are(frame: Frame) -> None:
    assert encode(frame, compressing()) == encode(frame)


def test_a_compressed_request_without_agreement() -> None:
    data = encode(Request(7, "echo", b"a" * 5_000), compressing())
    with pytest.raises(MalformedFrame, match="no compression was agreed") as caught:
        decode(data)
    assert caught.value.request_id == 7


def test_a_compressed_reply_without_agreement() -> None:
    with pytest.raises(MalformedFrame, match="no compression was agreed") as caught:
        decode(encode(Reply(7, 0, b"a" * 5_000), compressing()))
    assert caught.value.request_id is None


def test_a_payload_that_cannot_be_decompressed_is_known_by_its_request() -> None:
    data = version3_frame(1, b"echo" + struct.pack(">I", 10) + b"junk", flags=2, short=4, id=7)
    with pytest.raises(MalformedFrame, match="not zlib data") as caught:
        decode(data, compressing())
    assert caught.value.request_id == 7


@pytest.mark.parametrize("name", ["zlib", "zstd"])
def test_a_bomb_is_refused(name: str) -> None:
    bomb = struct.pack(">I", 10_000_000) + load_algorithm(name).compress(bytes(10_000_000))
    with pytest.raises(FrameTooLarge, match="10000000 bytes was announced"):
        decode(version3_frame(1, b"echo" + bomb, flags=2, short=4), compressing(name))


def test_the_limit_counts_subject_and_original_payload_together() -> None:
    largest = Request(1, "echo", bytes(LIMIT - 4))
    assert decode(encode(largest, compressing()), compressing()) == [largest]
    with pytest.raises(FrameTooLarge):
        decode(encode(Request(1, "echo", bytes(LIMIT - 3)), compressing()), compressing())
