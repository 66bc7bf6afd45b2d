"""Frames with the variable widths of the source system."""

import pytest

from postroad.core.address import Address
from postroad.core.errors import FrameTooLarge, MalformedFrame
from postroad.wire.codecs import ZeebeCodec
from postroad.wire.frames import Frame, Reply, Request, Status

LIMIT = 100_000


def codec() -> ZeebeCodec:
    """A codec that has heard the address of its peer already."""
    made = ZeebeCodec(2, Address("h", 1), "10.0.0.1", LIMIT)
    made.decode(b"\x00\x01p\x00\x00\x00\x01", [])
    return made


def decode(data: bytes) -> list[Frame]:
    frames: list[Frame] = []
    assert codec().decode(data, frames) == len(data)
    return frames


ID_BYTES = {1: "01", 127: "7f", 128: "80 01", 2**62: "80 80 80 80 80 80 80 80 40", -1: "ff" * 9}
LENGTH_BYTES = {0: "00", 127: "7f", 300: "ac 02", 70_000: "f0 a2 04"}


@pytest.mark.parametrize(("id", "id_bytes"), ID_BYTES.items())
@pytest.mark.parametrize(("size", "length_bytes"), LENGTH_BYTES.items())
def test_frames(id: int, id_bytes: str, size: int, length_bytes: str) -> None:
    payload = b"x" * size
    middle = bytes.fromhex(id_bytes + length_bytes) + payload
    data = b"\x01" + middle + b"\x00\x04echo" + b"\x02" + middle + b"\x02"
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


REQUEST = b"\x01" + bytes.fromhex("80 01") + b"\x03abc" + b"\x00\x04echo"
REPLY = b"\x02" + bytes.fromhex("80 01") + b"\x03abc" + b"\x00"


@pytest.mark.parametrize("data", [REQUEST, REPLY])
def test_need_leads_to_the_end_of_a_frame(data: bytes) -> None:
    receiving = codec()
    frames: list[Frame] = []
    for size in range(len(data)):
        assert receiving.decode(data[:size], frames) == 0
        assert size < receiving.need <= len(data)
    assert receiving.decode(data, frames) == len(data)
    assert len(frames) == 1


@pytest.mark.parametrize("kind", [0, 3, 4, 127, 255])
def test_an_unknown_type(kind: int) -> None:
    with pytest.raises(MalformedFrame, match=f"unknown frame type {kind}"):
        decode(bytes([kind]))


@pytest.mark.parametrize(
    "length",
    ["a1 8d 06", "ff ff ff ff 07", "80 80 80 80 08", "ff ff ff ff 0f"],
    ids=["limit + 1", "2 GiB", "-2 GiB", "-1"],
)
@pytest.mark.parametrize("kind", [b"\x01", b"\x02"])
def test_a_payload_over_the_limit(kind: bytes, length: str) -> None:
    """A length with bit 31 set is negative there; here it is simply too large."""
    with pytest.raises(FrameTooLarge, match=f"{LIMIT} are accepted"):
        decode(kind + b"\x01" + bytes.fromhex(length))


def test_the_limit_counts_payload_and_subject_together() -> None:
    largest = b"\x01\x01" + bytes.fromhex("9c 8d 06") + bytes(LIMIT - 4) + b"\x00\x04echo"
    larger = b"\x01\x01" + bytes.fromhex("9d 8d 06") + bytes(LIMIT - 3) + b"\x00\x04echo"
    assert decode(largest)
    with pytest.raises(FrameTooLarge):
        decode(larger)


def test_a_length_of_six_bytes() -> None:
    with pytest.raises(MalformedFrame, match="more than five bytes"):
        decode(b"\x01\x01" + b"\x80" * 5 + b"\x00")


@pytest.mark.parametrize("length", ["80 00", "ff ff"])
def test_a_negative_subject_length(length: str) -> None:
    with pytest.raises(MalformedFrame, match="request 1 has a subject of negative length"):
        decode(b"\x01\x01\x00" + bytes.fromhex(length))


def test_the_longest_subject() -> None:
    assert decode(b"\x01\x01\x00\x7f\xff" + b"s" * 32_767) == [Request(1, "s" * 32_767, b"")]


def test_a_subject_that_is_no_text_is_known_by_its_request() -> None:
    with pytest.raises(MalformedFrame, match="subject is not valid UTF-8") as caught:
        decode(b"\x01\x07\x00\x00\x01\xff")
    assert caught.value.request_id == 7


@pytest.mark.parametrize("status", range(4))
def test_known_statuses(status: int) -> None:
    assert decode(b"\x02\x01\x00" + bytes([status])) == [Reply(1, status, b"")]


@pytest.mark.parametrize("status", [4, 127, 128, 255])
def test_an_unknown_status(status: int) -> None:
    with pytest.raises(MalformedFrame, match=f"reply 1 has unknown status {status}"):
        decode(b"\x02\x01\x00" + bytes([status]))
