"""What all codecs share."""

from typing import get_args

import pytest

from postroad.wire.codecs import Version3Codec
from postroad.wire.codecs.codec import encode_application_frame
from postroad.wire.frames import Cancel, Frame, Goodbye, Hello, Ping, Pong, Reply, Request
from tests.support.wire.pairs import make_config

FRAMES: dict[type[Frame], Frame] = {
    Request: Request(1, "echo", b"x", 250, one_way=True),
    Reply: Reply(1, 2, b"boom", 3800, retryable=True),
    Hello: make_config().hello,
    Cancel: Cancel(1),
    Ping: Ping(1),
    Pong: Pong(1),
    Goodbye: Goodbye(0, "bye"),
}


def test_the_test_knows_every_frame() -> None:
    assert set(FRAMES) == set(get_args(Frame))


@pytest.mark.parametrize("kind", FRAMES)
def test_only_requests_and_replies_are_application_frames(kind: type[Frame]) -> None:
    out: list[bytes] = []
    is_application = encode_application_frame(Version3Codec(1_000), out, FRAMES[kind])
    assert is_application is (kind in (Request, Reply))
    assert bool(out) is is_application


def test_all_fields_of_the_struct_are_told() -> None:
    codec = Version3Codec(1_000)
    for frame in (FRAMES[Request], FRAMES[Reply]):
        out: list[bytes] = []
        frames: list[Frame] = []
        encode_application_frame(codec, out, frame)
        codec.decode(b"".join(out), frames)
        assert frames == [frame]
