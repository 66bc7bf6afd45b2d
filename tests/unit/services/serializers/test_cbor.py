"""CBOR: the examples of RFC 8949, the habits of `cbor-x`, and bytes that are neither."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.services.serializers.cbor_reader import read_cbor
from postroad.services.serializers.cbor_writer import write_cbor
from tests.support.cases import each

# From appendix A of the RFC.
EXAMPLES: list[tuple[str, Any]] = [
    ("00", 0),
    ("17", 23),
    ("1818", 24),
    ("1903e8", 1_000),
    ("1a000f4240", 1_000_000),
    ("1b000000e8d4a51000", 1_000_000_000_000),
    ("1bffffffffffffffff", 18_446_744_073_709_551_615),
    ("c249010000000000000000", 18_446_744_073_709_551_616),
    ("3bffffffffffffffff", -18_446_744_073_709_551_616),
    ("c349010000000000000000", -18_446_744_073_709_551_617),
    ("20", -1),
    ("3903e7", -1_000),
    ("f90000", 0.0),
    ("f93c00", 1.0),
    ("fb3ff199999999999a", 1.1),
    ("fa47c35000", 100_000.0),
    ("f97c00", math.inf),
    ("fbc010666666666666", -4.1),
    ("f4", False),
    ("f5", True),
    ("f6", None),
    ("c074323031332d30332d32315432303a30343a30305a", datetime(2013, 3, 21, 20, 4, tzinfo=UTC)),
    ("c11a514b67b0", datetime(2013, 3, 21, 20, 4, tzinfo=UTC)),
    ("c1fb41d452d9ec200000", datetime(2013, 3, 21, 20, 4, 0, 500_000, UTC)),
    ("d74401020304", b"\x01\x02\x03\x04"),
    ("40", b""),
    ("6161", "a"),
    ("62c3bc", "ü"),
    ("64f0908591", "\U00010151"),
    ("8301820203820405", [1, [2, 3], [4, 5]]),
    ("a201020304", {1: 2, 3: 4}),
    ("a26161016162820203", {"a": 1, "b": [2, 3]}),
    ("5f42010243030405ff", b"\x01\x02\x03\x04\x05"),
    ("7f657374726561646d696e67ff", "streaming"),
    ("9fff", []),
    ("9f018202039f0405ffff", [1, [2, 3], [4, 5]]),
    ("bf61610161629f0203ffff", {"a": 1, "b": [2, 3]}),
]


@each(*EXAMPLES)
def test_examples_of_the_rfc(text: str, value: Any) -> None:
    read = read_cbor(bytes.fromhex(text))
    assert read == value
    assert type(read) is type(value)


@each(
    ("f7", None),
    ("a16161f7", {}),
    ("b90001616101", {"a": 1}),
    ("8301f702", [1, None, 2]),
    ("fb4278bcfe56800000", 1_700_000_000_000),
    ("d84043010203", b"\x01\x02\x03"),
    ("d9010281182a", [42]),
    ("67f09f9880eda080", "\U0001f600\ufffd\ufffd\ufffd"),
    ("c1fb7ff8000000000000", None),
    ("c063616263", "abc"),
)
def test_habits_of_the_original(text: str, value: Any) -> None:
    read = read_cbor(bytes.fromhex(text))
    assert read == value
    assert type(read) is type(value)


@each(
    (0, "00"),
    (24, "1818"),
    (256, "190100"),
    (2**32 - 1, "1affffffff"),
    (2**32, "fb41f0000000000000"),
    (-1, "20"),
    (-(2**32), "fbc1f0000000000000"),
    (2**53, "fb4340000000000000"),
    (2**53 + 1, "1b0020000000000001"),
    (2**64, "c249010000000000000000"),
    (-(2**64) - 1, "c349010000000000000000"),
    (1.5, "fb3ff8000000000000"),
    (b"\x01", "4101"),
    ("ü", "62c3bc"),
    ((1, None), "8201f6"),
    ({"a": True}, "a16161f5"),
    (datetime(2013, 3, 21, 20, 4, tzinfo=UTC), "c1fb41d452d9ec000000"),
    (datetime(2013, 3, 21), "73323031332d30332d32315430303a30303a3030"),
)
def test_written_bytes(value: Any, text: str) -> None:
    assert write_cbor(value).hex() == text


def test_lengths_of_every_form_are_read_within_a_limit() -> None:
    for size in (23, 24, 255, 256, 65_535, 65_536):
        for value in ("x" * size, b"x" * size, [0] * size, {str(n): n for n in range(size)}):
            assert read_cbor(write_cbor(value)) == value, size
    with pytest.raises(MalformedPayloadError, match="a number of"):
        read_cbor(b"\xc2\x59\x04\x01" + b"\xff" * 1_025)


@each(
    "",
    "18",
    "1c",
    "1f",
    "41",
    "61",
    "81",
    "a1",
    "a101",
    "ff",
    "81ff",
    "bf01ff",
    "a1ff01",
    "c1",
    "fb00",
    "fc",
    "e0",
    "f800",
    "5f6161ff",
    "7f4161ff",
    "5f01ff",
    "a18001",
    "9bffffffffffffffff",
    "bbffffffffffffffff",
    "5bffffffffffffffff",
    "0000",
    "c25b0000000100000000",
)
def test_other_bytes_are_refused(text: str) -> None:
    with pytest.raises(MalformedPayloadError):
        read_cbor(bytes.fromhex(text))
