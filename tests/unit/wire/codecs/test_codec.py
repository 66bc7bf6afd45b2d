"""What all codecs share."""

from typing import get_args

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


def test_only_requests_and_replies_are_application_frames() -> None:
    assert set(FRAMES) == set(get_args(Frame))

    codec = Version3Codec(1_000)
    for kind, frame in FRAMES.items():
        out: list[bytes] = []
        is_application = encode_application_frame(codec, out, frame)
        assert is_application is (kind in (Request, Reply)), kind
        frames: list[Frame] = []
        codec.decode(b"".join(out), frames)
        assert frames == [frame] * is_application, kind
