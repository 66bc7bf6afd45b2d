"""What all codecs do with frames, in the layouts that raw peers write by hand."""

import struct
from collections.abc import Callable
from typing import NamedTuple, get_args

import pytest

from postroad.core.errors import FrameTooLargeError, MalformedFrameError
from postroad.core.names import Address
from postroad.wire.codecs import Codec, DocumentedCodec, Version3Codec, ZeebeCodec
from postroad.wire.frames import (
    CancelFrame,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    PingFrame,
    PongFrame,
    ProofFrame,
    ReplyFrame,
    RequestFrame,
)
from tests.support.wire.pairs import make_config
from tests.support.wire.raw_dialects import Dialect, Version3, Zeebe

FRAMES: dict[type[Frame], Frame] = {
    RequestFrame: RequestFrame(1, "echo", b"x", 250, one_way=True),
    ReplyFrame: ReplyFrame(1, 2, b"boom", 3800, retryable=True),
    HelloFrame: make_config().hello,
    CancelFrame: CancelFrame(1),
    PingFrame: PingFrame(1),
    PongFrame: PongFrame(1),
    GoodbyeFrame: GoodbyeFrame(0, "bye"),
    ProofFrame: ProofFrame(bytes(32)),
}


def test_version_3_encodes_every_kind_of_frame() -> None:
    assert set(FRAMES) == set(get_args(Frame))
    for kind, frame in FRAMES.items():
        out: list[bytes] = []
        Version3Codec(1_000).encode(out, frame)
        frames: list[Frame] = []
        Version3Codec(1_000).decode(b"".join(out), frames)
        assert frames == [frame], kind


LIMIT = 100_000


HERE = Address("h", 1)


class Form(NamedTuple):
    """A codec, and its layout as a raw peer writes it."""

    make: Callable[[], Codec]
    dialect: Dialect
    known_types: set[int]
    known_statuses: range
    steps_max: int
    timeout_ms: int = 0
    type_at: int = 0
    header_bytes: int = 0

    def codec(self) -> Codec:
        """A codec that has heard who its peer is, and has said so itself."""
        codec = self.make()
        codec.decode(self.dialect.introduction(), [])
        codec.encode([], ReplyFrame(1, 0, b""))
        return codec

    def decode(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        assert self.codec().decode(data, frames) == len(data)
        return frames

    def request(self, id: int, subject: str, payload: bytes) -> RequestFrame:
        return RequestFrame(id, subject, payload, self.timeout_ms)


FORMS = {
    "documented": Form(
        lambda: DocumentedCodec(2, HERE, "10.0.0.1", LIMIT), Dialect(2), {1, 2}, range(4), 4
    ),
    "zeebe": Form(lambda: ZeebeCodec(2, HERE, "10.0.0.1", LIMIT), Zeebe(2), {1, 2}, range(4), 8),
    "version 3": Form(
        lambda: Version3Codec(LIMIT), Version3(), set(range(1, 9)), range(5), 2, 5_000, 4, 16
    ),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Form:
    return FORMS[request.param]


def test_requests_and_replies_are_written_and_read_in_their_layout(form: Form) -> None:
    for id in (0, 1, 127, 128, 2**40):
        for size in (0, 1, 127, 300, 70_000):
            payload = b"x" * size
            frames: list[Frame] = [form.request(id, "echo", payload), ReplyFrame(id, 2, payload)]
            data = form.dialect.request(id, "echo", payload) + form.dialect.reply(id, payload, 2)
            assert form.decode(data) == frames, (id, size)
            out: list[bytes] = []
            codec = form.codec()
            for frame in frames:
                codec.encode(out, frame)
            assert b"".join(out) == data, (id, size)
            if size == 70_000:
                assert sum(piece is payload for piece in out) == 2, "it is not copied"


def test_every_prefix_is_waited_for_and_need_leads_to_the_end(form: Form) -> None:
    for data in (form.dialect.request(128, "echo", b"abc"), form.dialect.reply(128, b"abc")):
        codec = form.codec()
        frames: list[Frame] = []
        for size in range(len(data)):
            assert codec.decode(data[:size], frames) == 0, size
            assert size < codec.bytes_needed <= len(data), size
        assert codec.decode(data + data[:1], frames) == len(data)
        assert len(frames) == 1
        codec, have, steps = form.codec(), 0, 0
        while codec.decode(data[:have], frames) == 0:
            have, steps = codec.bytes_needed, steps + 1
        assert (have, steps <= form.steps_max) == (len(data), True)


def test_a_frame_of_an_unknown_type_is_malformed(form: Form) -> None:
    data = bytearray(form.dialect.request(1, "", bytes(10)))
    for kind in set(range(256)) - form.known_types:
        data[form.type_at] = kind
        with pytest.raises(MalformedFrameError, match=f"unknown frame type {kind}"):
            form.decode(bytes(data))


def test_the_limit_counts_payload_and_subject_together(form: Form) -> None:
    for kind in (1, 2):
        for length in (LIMIT + 1, 2**31 - 1):
            accepted = f"{length} bytes was announced, {LIMIT} are accepted"
            with pytest.raises(FrameTooLargeError, match=accepted):
                form.decode(form.dialect.oversized(kind, form.header_bytes + length))
    assert form.decode(form.dialect.request(1, "echo", bytes(LIMIT - 4)))
    with pytest.raises(FrameTooLargeError):
        form.decode(form.dialect.request(1, "echo", bytes(LIMIT - 3)))


def test_a_subject_may_be_long_but_must_be_text(form: Form) -> None:
    longest = "s" * 32_767
    assert form.decode(form.dialect.request(1, longest)) == [form.request(1, longest, b"")]
    with pytest.raises(MalformedFrameError, match="subject is not valid UTF-8") as caught:
        form.decode(form.dialect.request(7, b"ech\xff", b"payload"))
    assert caught.value.request_id == 7


def test_a_reply_of_an_unknown_status_is_malformed(form: Form) -> None:
    for status in range(256):
        data = form.dialect.reply(1, b"", status)
        if status in form.known_statuses:
            assert form.decode(data) == [ReplyFrame(1, status, b"")]
        else:
            with pytest.raises(MalformedFrameError, match="reply 1 has unknown status"):
                form.decode(data)


def test_lengths_of_the_documented_profile_are_signed(subtests: pytest.Subtests) -> None:
    form = FORMS["documented"]
    for id in (-1, 2**63 - 1, -(2**63)):
        assert form.decode(form.dialect.request(id, "echo")) == [RequestFrame(id, "echo", b"")]
    for kind in (1, 2):
        for length in (-1, -(2**31)):
            negative = f"negative payload length, {length}"
            with subtests.test(kind=kind), pytest.raises(MalformedFrameError, match=negative):
                form.decode(struct.pack(">bqi", kind, 1, length))
    for length in (-1, -(2**31), 32_768, 2**31 - 1):
        impossible = f"request 7 has a subject of {length} bytes"
        with subtests.test(length=length), pytest.raises(MalformedFrameError, match=impossible):
            form.decode(struct.pack(">bqii", 1, 7, 0, length))


def test_lengths_of_the_zeebe_profile_are_variable(subtests: pytest.Subtests) -> None:
    form = FORMS["zeebe"]
    for id, encoded in {2**62: "80" * 8 + "40", -1: "ff" * 9}.items():
        data = b"\x02" + bytes.fromhex(encoded) + b"\x00\x00"
        assert form.decode(data) == [ReplyFrame(id, 0, b"")]
    # A length with bit 31 set is negative there; here it is simply too large.
    for length in ("a1 8d 06", "ff ff ff ff 07", "80 80 80 80 08", "ff ff ff ff 0f"):
        for kind in (b"\x01", b"\x02"):
            data = kind + b"\x01" + bytes.fromhex(length)
            with (
                subtests.test(length=length),
                pytest.raises(FrameTooLargeError, match="are accepted"),
            ):
                form.decode(data)
    with pytest.raises(MalformedFrameError, match="more than five bytes"):
        form.decode(b"\x01\x01" + b"\x80" * 5 + b"\x00")
    for length in ("80 00", "ff ff"):
        negative = "request 1 has a subject of negative length"
        with subtests.test(length=length), pytest.raises(MalformedFrameError, match=negative):
            form.decode(b"\x01\x01\x00" + bytes.fromhex(length))
