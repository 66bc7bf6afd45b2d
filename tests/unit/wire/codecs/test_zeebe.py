"""Variable-length integers of the `zeebe` profile."""

from collections.abc import Callable

import pytest

from postroad.core.errors import MalformedFrameError
from postroad.wire.codecs import zeebe

Decoder = Callable[[bytes, int], tuple[int, int]]

BOUNDARIES_32 = {
    0: "00",
    1: "01",
    127: "7f",
    128: "80 01",
    300: "ac 02",
    16_383: "ff 7f",
    16_384: "80 80 01",
    2**21 - 1: "ff ff 7f",
    2**21: "80 80 80 01",
    2**28 - 1: "ff ff ff 7f",
    2**28: "80 80 80 80 01",
    2**31 - 1: "ff ff ff ff 07",
    2**32 - 1: "ff ff ff ff 0f",
}

BOUNDARIES_64 = {
    0: "00",
    127: "7f",
    128: "80 01",
    2**32: "80 80 80 80 10",
    2**49 - 1: "ff ff ff ff ff ff 7f",
    2**49: "80 80 80 80 80 80 80 01",
    2**56 - 1: "ff ff ff ff ff ff ff 7f",
    2**56: "80 80 80 80 80 80 80 80 01",
    2**62: "80 80 80 80 80 80 80 80 40",
    2**63 - 1: "ff ff ff ff ff ff ff ff 7f",
    -(2**63): "80 80 80 80 80 80 80 80 80",
    -1: "ff ff ff ff ff ff ff ff ff",
}


def test_values_have_their_encoding(subtests: pytest.Subtests) -> None:
    for boundaries, encode, decode in [
        (BOUNDARIES_32, zeebe.encode_varint32, zeebe.decode_varint32),
        (BOUNDARIES_64, zeebe.encode_varint64, zeebe.decode_varint64),
    ]:
        for value, encoded in boundaries.items():
            with subtests.test(value=value):
                data = bytes.fromhex(encoded)
                assert encode(value) == data
                assert decode(b"\xff" + data + b"\xff", 1) == (value, 1 + len(data))
                assert decode(memoryview(data), 0) == (value, len(data))

    assert zeebe.decode_varint32(bytes.fromhex("ff ff ff ff 7f"), 0) == (2**32 - 1, 5)


def test_an_early_end_asks_for_more_and_a_late_one_is_refused(subtests: pytest.Subtests) -> None:
    for decode, encoded in [
        (zeebe.decode_varint32, "ff ff ff ff 0f"),
        (zeebe.decode_varint64, "ff ff ff ff ff ff ff ff ff"),
    ]:
        with subtests.test(encoded=encoded):
            data = bytes.fromhex(encoded)
            for size in range(len(data)):
                with pytest.raises(IndexError):
                    decode(data[:size], 0)

    with pytest.raises(MalformedFrameError, match="more than five bytes"):
        zeebe.decode_varint32(bytes.fromhex("80 80 80 80 80 00"), 0)
