"""Frames with the fixed widths of the documentation."""

import struct

import pytest

from postroad.core.address import Address
from postroad.core.errors import FrameTooLarge, MalformedFrame
from postroad.wire.codecs import DocumentedCodec
from postroad.wire.frames import Frame, Reply, Request, Status

LIMIT = 100_000


def codec() -> DocumentedCodec:
    """A codec that has heard the address of its peer already."""
    made = DocumentedCodec(2, Address("h", 1), "10.0.0.1", LIMIT)
    made.decode(b"\x00\x01p\x00\x00\x00\x01", [])
    return made


def decode(data: bytes) -> list[Frame]:
    frames: list[Frame] = []
    assert codec().decode(data, frames) == len(data)
    return frames


def request(id: int, payload: bytes, subject: bytes) -> bytes:
    head = struct.pack(">bqi", 1, id, len(payload))
    return head + payload + struct.pack(">i", len(subject)) + subject


def reply(id: int, payload: bytes, status: int) -> bytes:
    return struct.pack(">bqi", 2, id, len(payload)) + payload + struct.pack(">b", status)


@pytest.mark.parametrize("id", [0, 1, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("payload", [b"", b"x", bytes(70_000)])
def test_frames(id: int, payload: bytes) -> None:
    data = request(id, payload, b"echo") + reply(id, payload, 2)
    assert decode(data) == [Request(id, "echo", payload), Reply(id, 2, payload)]

    out: list[bytes] = []
    sending = codec()
    sending.encode_request(out, id, "echo", payload, 0, False)
    sending.encode_reply(out, id, Status.HANDLER_FAILED, payload, 0, False)
    assert b"".join(out[1:]) == data


def test_a_large_payload_is_not_copied() -> None:
    payload = bytes(70_000)
    out: list[bytes] = []
    sending = codec()
    sending.encode_request(out, 1, "echo", payload, 0, False)
    sending.encode_reply(out, 1, Status.OK, payload, 0, False)
    assert sum(piece is payload for piece in out) == 2


@pytest.mark.parametrize("data", [request(1, b"abc", b"echo"), reply(1, b"abc", 0)])
def test_need_leads_to_the_end_of_a_frame(data: bytes) -> None:
    receiving = codec()
    have = 0
    frames: list[Frame] = []
    for _ in range(4):
        assert receiving.decode(data[:have], frames) == 0
        assert have < receiving.need <= len(data)
        have = receiving.need
        if have == len(data):
            break
    assert receiving.decode(data, frames) == len(data)
    assert len(frames) == 1


def test_every_prefix_is_waited_for() -> None:
    data = request(1, b"abc", b"echo")
    for size in range(len(data)):
        frames: list[Frame] = []
        assert codec().decode(data[:size], frames) == 0
        assert frames == []


@pytest.mark.parametrize("kind", [0, 3, 4, 127, 255])
def test_an_unknown_type(kind: int) -> None:
    with pytest.raises(MalformedFrame, match=f"unknown frame type {kind}"):
        decode(struct.pack(">Bqi", kind, 1, 0) + bytes(10))


@pytest.mark.parametrize("length", [-1, -(2**31)])
@pytest.mark.parametrize("kind", [1, 2])
def test_a_negative_payload_length(kind: int, length: int) -> None:
    with pytest.raises(MalformedFrame, match=f"negative payload length, {length}"):
        decode(struct.pack(">bqi", kind, 1, length))


@pytest.mark.parametrize("length", [LIMIT + 1, 2**31 - 1])
@pytest.mark.parametrize("kind", [1, 2])
def test_a_payload_over_the_limit(kind: int, length: int) -> None:
    with pytest.raises(FrameTooLarge, match=f"{length} bytes was announced, {LIMIT} are accepted"):
        decode(struct.pack(">bqi", kind, 1, length))


def test_the_limit_counts_payload_and_subject_together() -> None:
    assert decode(request(1, bytes(LIMIT - 4), b"echo"))
    with pytest.raises(FrameTooLarge):
        decode(request(1, bytes(LIMIT - 3), b"echo"))


@pytest.mark.parametrize("length", [-1, -(2**31), 32_768, 2**31 - 1])
def test_a_subject_of_impossible_length(length: int) -> None:
    with pytest.raises(MalformedFrame, match=f"request 7 has a subject of {length} bytes"):
        decode(struct.pack(">bqii", 1, 7, 0, length))


def test_the_longest_subject() -> None:
    assert decode(request(1, b"", b"s" * 32_767)) == [Request(1, "s" * 32_767, b"")]


def test_a_subject_that_is_no_text_is_known_by_its_request() -> None:
    with pytest.raises(MalformedFrame, match="subject is not valid UTF-8") as caught:
        decode(request(7, b"payload", b"ech\xff"))
    assert caught.value.request_id == 7


@pytest.mark.parametrize("status", range(4))
def test_known_statuses(status: int) -> None:
    assert decode(reply(1, b"", status)) == [Reply(1, status, b"")]


@pytest.mark.parametrize("status", [4, 5, 127, -1, -128])
def test_an_unknown_status(status: int) -> None:
    with pytest.raises(MalformedFrame, match="reply 1 has unknown status"):
        decode(reply(1, b"", status))
