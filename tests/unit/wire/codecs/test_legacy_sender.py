"""The sender's address of versions 1 and 2."""

import pytest

from postroad.core.errors import ConfigError, MalformedFrameError
from postroad.core.names import Address
from postroad.wire.codecs.legacy import (
    decode_sender_host,
    decode_sender_ip,
    encode_sender_host,
    encode_sender_ip,
)

HOST = b"\x00\x09127.0.0.1\x00\x00\x6d\x5e"
IPV6 = "2001:db8::1"
IPV6_BYTES = bytes.fromhex("20010db8000000000000000000000001")


def test_a_host_is_read_as_it_is_written(subtests: pytest.Subtests) -> None:
    for address, data in [
        (Address("127.0.0.1", 27998), HOST),
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
