"""The address before all frames, in either profile, and how it is encoded."""

import pytest

from postroad.core.errors import ConfigError, LocalProtocolError, MalformedFrameError
from postroad.core.names import Address
from postroad.wire.codecs import DocumentedCodec, ZeebeCodec
from postroad.wire.codecs.legacy import (
    LegacyCodec,
    decode_sender_host,
    decode_sender_ip,
    encode_sender_host,
    encode_sender_ip,
)
from postroad.wire.frames import (
    CancelFrame,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    PingFrame,
    PongFrame,
    ReplyFrame,
    RequestFrame,
)
from tests.support.wire.pairs import make_config

SENDER = Address("host", 27998)
SHORT_IP = b"\x04\x0a\x00\x00\x01\x00\x00\x6d\x5e"
LONG_IP = b"\x00" + SHORT_IP
HOST = b"\x00\x04host\x00\x00\x6d\x5e"


def make(codec: type[LegacyCodec], version: int) -> LegacyCodec:
    return codec(version, SENDER, "10.0.0.1", 1_000)


BOTH = pytest.mark.parametrize("codec", [DocumentedCodec, ZeebeCodec])


@BOTH
@pytest.mark.parametrize("frame", [RequestFrame(1, "a", b""), ReplyFrame(1, 0, b"")])
def test_the_address_leaves_once_before_the_first_frame(
    codec: type[LegacyCodec], frame: Frame
) -> None:
    sending = make(codec, 2)
    first: list[bytes] = []
    second: list[bytes] = []
    sending.encode(first, frame)
    sending.encode(second, frame)
    assert b"".join(first) == HOST + b"".join(second)


@pytest.mark.parametrize(
    ("codec", "received", "expected"),
    [
        (DocumentedCodec, None, LONG_IP),
        (DocumentedCodec, LONG_IP, LONG_IP),
        (DocumentedCodec, SHORT_IP, SHORT_IP),
        (ZeebeCodec, None, SHORT_IP),
    ],
)
def test_version_1_tells_the_ip_address_in_the_form_it_was_addressed_in(
    codec: type[LegacyCodec], received: bytes | None, expected: bytes
) -> None:
    side = make(codec, 1)
    if received is not None:
        side.decode(received, [])
        assert side.sender == Address("10.0.0.1", 27998)
    out: list[bytes] = []
    side.encode(out, ReplyFrame(1, 0, b""))
    assert out[0] == expected

    with pytest.raises(MalformedFrameError, match="0 bytes; an IP address has 4 or 16"):
        make(ZeebeCodec, 1).decode(LONG_IP, [])


@BOTH
def test_the_address_is_read_once(codec: type[LegacyCodec]) -> None:
    sending, receiving = make(codec, 2), make(codec, 2)
    out: list[bytes] = []
    frames: list[Frame] = []
    for id in (1, 2):
        sending.encode(out, ReplyFrame(id, 0, b""))
    assert receiving.sender is None
    receiving.decode(b"".join(out), frames)
    assert receiving.sender == SENDER
    assert frames == [ReplyFrame(1, 0, b""), ReplyFrame(2, 0, b"")]

    receiving = make(codec, 2)
    frames = []
    for size in range(len(HOST)):
        assert receiving.decode(HOST[:size], frames) == 0
        assert receiving.bytes_needed == size + 1
    assert receiving.decode(HOST, frames) == len(HOST)
    assert receiving.sender == SENDER

    receiving = make(codec, 1)
    assert receiving.decode(b"", []) == 0
    assert receiving.sender is None


@BOTH
@pytest.mark.parametrize(
    "frame",
    [make_config().hello, CancelFrame(1), PingFrame(1), PongFrame(1), GoodbyeFrame(0, "bye")],
)
@pytest.mark.parametrize("version", [1, 2])
def test_frames_of_version_3_cannot_be_sent(
    codec: type[LegacyCodec],
    frame: HelloFrame | CancelFrame | PingFrame | PongFrame | GoodbyeFrame,
    version: int,
) -> None:
    out: list[bytes] = []
    with pytest.raises(LocalProtocolError, match=f"version {version} has no frame for"):
        make(codec, version).encode(out, frame)
    assert out == []


@pytest.mark.parametrize("codec", [DocumentedCodec, ZeebeCodec])
def test_sender_host_longer_than_a_name_can_be_is_rejected_at_its_length(
    codec: type[LegacyCodec],
) -> None:
    longest = b"\x00\xff" + b"h" * 255 + b"\x00\x00\x00\x50"
    decoder = codec(2, Address("here", 1), "", 1_000)
    decoder.decode(longest, [])
    assert decoder.sender == Address("h" * 255, 80)
    # The first bytes of gzip, as of a peer that compresses its connection.
    for start in (b"\x01\x00", b"\x1f\x8b"):
        with pytest.raises(MalformedFrameError, match=r"at most 255 are allowed.*compression"):
            codec(2, Address("here", 1), "", 1_000).decode(start, [])


LOOPBACK_HOST = b"\x00\x09127.0.0.1\x00\x00\x6d\x5e"
IPV6 = "2001:db8::1"
IPV6_BYTES = bytes.fromhex("20010db8000000000000000000000001")


def test_a_host_is_read_as_it_is_written(subtests: pytest.Subtests) -> None:
    for address, data in [
        (Address("127.0.0.1", 27998), LOOPBACK_HOST),
        (Address("", 0), b"\x00\x00\x00\x00\x00\x00"),
        (Address("Ünï", 65535), b"\x00\x05\xc3\x9cn\xc3\xaf\x00\x00\xff\xff"),
    ]:
        with subtests.test(data=data):
            assert encode_sender_host(address) == data
            assert decode_sender_host(data + b"rest") == (address, len(data))
            assert decode_sender_host(memoryview(data)) == (address, len(data))
            for size in range(len(data)):
                assert decode_sender_host(data[:size]) is None


@pytest.mark.parametrize(("ip", "packed"), [("127.0.0.1", b"\x7f\x00\x00\x01"), (IPV6, IPV6_BYTES)])
@pytest.mark.parametrize("has_short_length", [True, False])
def test_ip(ip: str, packed: bytes, has_short_length: bool) -> None:
    length = bytes([len(packed)]) if has_short_length else bytes([0, len(packed)])
    data = length + packed + b"\x00\x00\x6d\x5e"
    expected = (Address(ip, 27998), len(data))
    assert encode_sender_ip(ip, 27998, has_short_length=has_short_length) == data
    assert decode_sender_ip(data + b"rest", has_short_length=has_short_length) == expected
    assert decode_sender_ip(memoryview(data), has_short_length=has_short_length) == expected
    for size in range(len(data)):
        assert decode_sender_ip(data[:size], has_short_length=has_short_length) is None


def test_a_bad_host_is_malformed(subtests: pytest.Subtests) -> None:
    for length in [b"\x80\x00", b"\xff\xff"]:
        with (
            subtests.test(length=length),
            pytest.raises(MalformedFrameError, match="negative length"),
        ):
            decode_sender_host(length)

    with pytest.raises(MalformedFrameError, match="sender host is not valid UTF-8"):
        decode_sender_host(b"\x00\x01\xff\x00\x00\x00\x01")

    for port in ["00010000", "ffffffff", "7fffffff", "80000000"]:
        with subtests.test(port=port):
            with pytest.raises(MalformedFrameError, match="is not 0 to 65535"):
                decode_sender_host(b"\x00\x01a" + bytes.fromhex(port))
            with pytest.raises(MalformedFrameError, match="is not 0 to 65535"):
                decode_sender_ip(
                    b"\x04\x7f\x00\x00\x01" + bytes.fromhex(port), has_short_length=True
                )


def test_an_ip_address_has_4_or_16_bytes(subtests: pytest.Subtests) -> None:
    for length in [0, 1, 5, 15, 17, 255]:
        with subtests.test(length=length):
            with pytest.raises(MalformedFrameError, match=f"{length} bytes; an IP address"):
                decode_sender_ip(bytes([length]), has_short_length=True)
            with pytest.raises(MalformedFrameError, match=f"{length} bytes; an IP address"):
                decode_sender_ip(bytes([0, length]), has_short_length=False)

    with pytest.raises(MalformedFrameError, match="-1 bytes; an IP address has 4 or 16"):
        decode_sender_ip(b"\xff\xff", has_short_length=False)

    with pytest.raises(ConfigError, match="needs an IP address to advertise, not 'localhost'"):
        encode_sender_ip("localhost", 1, has_short_length=True)
