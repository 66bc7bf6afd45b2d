"""Checks of what a peer announces."""

import pytest

from postroad.core.errors import FrameTooLargeError, MalformedFrameError
from postroad.wire.frames import check_frame_size, decode_utf8, frame_too_large_error


def test_text_is_decoded_or_named_with_its_field_and_request(subtests: pytest.Subtests) -> None:
    for data in [b"", b"echo", "Ünï 🚀".encode()]:
        assert decode_utf8(data, "subject") == data.decode(), data
        assert decode_utf8(memoryview(data), "subject") == data.decode(), data

    for data in [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"]:
        with subtests.test(data=data):
            with pytest.raises(MalformedFrameError, match="subject is not valid UTF-8") as caught:
                decode_utf8(data, "subject", 7)
            assert caught.value.request_id == 7


def test_a_frame_may_fill_its_limit_and_no_more() -> None:
    check_frame_size(10, 10)
    with pytest.raises(FrameTooLargeError, match="11 bytes was announced, 10 are accepted"):
        check_frame_size(11, 10)
    assert isinstance(frame_too_large_error(11, 10), FrameTooLargeError)
