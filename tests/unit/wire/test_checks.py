"""Checks of what a peer announces."""

import pytest

from postroad.core.errors import FrameTooLarge, MalformedFrame
from postroad.wire.checks import check_frame_size, decode_text, frame_too_large


@pytest.mark.parametrize("data", [b"", b"echo", "Ünï 🚀".encode()])
def test_text(data: bytes) -> None:
    assert decode_text(data, "subject") == data.decode()
    assert decode_text(memoryview(data), "subject") == data.decode()


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_bad_text_names_its_field_and_request(data: bytes) -> None:
    with pytest.raises(MalformedFrame, match="subject is not valid UTF-8") as caught:
        decode_text(data, "subject", 7)
    assert caught.value.request_id == 7


def test_a_frame_may_fill_its_limit() -> None:
    check_frame_size(10, 10)


def test_a_larger_frame_is_refused_with_both_sizes() -> None:
    with pytest.raises(FrameTooLarge, match="11 bytes was announced, 10 are accepted"):
        check_frame_size(11, 10)
    assert isinstance(frame_too_large(11, 10), FrameTooLarge)
