"""Roles, statuses and defaults of frames, and the checks of their fields."""

import pytest

from postroad.core.errors import FrameTooLargeError, MalformedFrameError
from postroad.wire.frames import (
    ConnectionRole,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
    check_frame_size,
    decode_utf8,
    frame_too_large_error,
)


def test_roles_statuses_and_defaults_are_those_of_the_source_system() -> None:
    assert ConnectionRole.CLIENT.opposite is ConnectionRole.SERVER
    assert ConnectionRole.SERVER.opposite is ConnectionRole.CLIENT
    assert [(status.value, status.name) for status in ReplyStatus] == [
        (0, "OK"),
        (1, "NO_HANDLER"),
        (2, "HANDLER_FAILED"),
        (3, "PROTOCOL_FAILED"),
        (4, "STOPPING"),
    ]
    request = RequestFrame(1, "echo", b"x")
    assert (request.timeout_ms, request.one_way) == (0, False)
    reply = ReplyFrame(1, ReplyStatus.OK, b"x")
    assert (reply.code, reply.retryable) == (0, False)


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
