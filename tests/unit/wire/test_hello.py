"""The body of a version 3 hello."""

import struct

import msgspec
import pytest

from postroad.core.errors import MalformedFrameError
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.core.names import Address
from postroad.wire.frames import HelloFrame
from postroad.wire.hello import HelloField, decode_hello, encode_hello
from tests.support.wire.pairs import hello_fields

HELLO = HelloFrame(
    cluster="c",
    name="alpha",
    incarnation=2**64 - 1,
    address=Address("host", 26502),
    frame_bytes_max=4_194_304,
    requests_pending_max=16_384,
    heartbeat_timeout_ms=15_000,
    compressions=("zstd", "zlib"),
)

FIELDS: dict[int, bytes] = {
    1: b"c",
    2: b"alpha",
    3: b"\xff" * 8,
    4: b"host",
    5: b"\x67\x86",
    6: b"\x00\x40\x00\x00",
    7: b"\x00\x00\x40\x00",
    8: b"\x00\x00\x3a\x98",
    9: b"zstd,zlib",
}
REQUIRED = {1: "cluster", 2: "name", 3: "incarnation", 6: "frame_bytes_max"}


def test_layout_in_any_order_with_unknown_fields() -> None:
    assert encode_hello(HELLO) == hello_fields(FIELDS)
    assert decode_hello(hello_fields(FIELDS)) == HELLO
    assert decode_hello(hello_fields(dict(reversed(FIELDS.items())))) == HELLO
    assert decode_hello(hello_fields({**FIELDS, 16: b"later", 65_535: b""})) == HELLO

    body = hello_fields({2: b"beta"}) + hello_fields(FIELDS)
    assert decode_hello(body).name == "alpha"


def test_hello_role_zone_and_tunnel_are_encoded_only_if_set(subtests: pytest.Subtests) -> None:
    member = msgspec.structs.replace(HELLO, is_member=True)
    assert encode_hello(member) == encode_hello(HELLO) + bytes.fromhex("000a 0001 01")
    assert decode_hello(encode_hello(member)) == member

    part = msgspec.structs.replace(HELLO, role="core", zone="süd")
    suffix = bytes.fromhex("000b 0004 636f7265  000c 0004 73c3bc64")
    assert encode_hello(part) == encode_hello(HELLO) + suffix
    assert decode_hello(encode_hello(part)) == part

    tunnel = msgspec.structs.replace(HELLO, is_tunnel=True)
    assert encode_hello(tunnel) == encode_hello(HELLO) + bytes.fromhex("000d 0001 01")
    assert decode_hello(encode_hello(tunnel)) == tunnel

    nonce = msgspec.structs.replace(HELLO, nonce=bytes(32))
    assert encode_hello(nonce) == encode_hello(HELLO) + bytes.fromhex("000f 0020") + bytes(32)
    assert decode_hello(encode_hello(nonce)) == nonce
    with pytest.raises(MalformedFrameError, match="hello nonce has 31 bytes, not 32"):
        decode_hello(hello_fields({**FIELDS, 15: bytes(31)}))

    for tag, name in [(11, "role"), (12, "zone")]:
        with subtests.test(tag=tag):
            longest = decode_hello(hello_fields({**FIELDS, tag: b"p" * 255}))
            assert getattr(longest, name) == "p" * 255
            with pytest.raises(MalformedFrameError, match=f"hello {name} has 256 bytes"):
                decode_hello(hello_fields({**FIELDS, tag: b"p" * 256}))


def test_required_fields_must_be_there_and_others_have_defaults(subtests: pytest.Subtests) -> None:
    body = hello_fields({tag: FIELDS[tag] for tag in REQUIRED})
    assert decode_hello(body) == HelloFrame("c", "alpha", 2**64 - 1, Address("", 0), 4_194_304, 1)

    for tag, name in REQUIRED.items():
        with subtests.test(tag=tag):
            fields = {each: value for each, value in FIELDS.items() if each != tag}
            with pytest.raises(MalformedFrameError, match=f"hello lacks its {name}"):
                decode_hello(hello_fields(fields))


def test_fields_have_their_width_text_and_range(subtests: pytest.Subtests) -> None:
    for tag in [3, 5, 6, 7, 8, 10, 13]:
        for change in [b"", b"\x01" * 3, b"\x01" * 9]:
            with (
                subtests.test(tag=tag, change=change),
                pytest.raises(
                    MalformedFrameError,
                    match=f"hello {HelloField(tag).name.lower()} has {len(change)}",
                ),
            ):
                decode_hello(hello_fields({**FIELDS, tag: change}))

    for tag in [1, 2, 4, 9, 11, 12]:
        with (
            subtests.test(tag=tag),
            pytest.raises(
                MalformedFrameError,
                match=f"hello {HelloField(tag).name.lower()} is not valid UTF-8",
            ),
        ):
            decode_hello(hello_fields({**FIELDS, tag: b"\xff"}))

    for name in [b"", b"local", b"a@b", b"a b", b"n" * 256]:
        with (
            subtests.test(name=name),
            pytest.raises(MalformedFrameError, match=r"hello: .*node name"),
        ):
            decode_hello(hello_fields({**FIELDS, 2: name}))

    for tag in [6, 7]:
        refusal = pytest.raises(MalformedFrameError, match="accepts no frames or no requests")
        with subtests.test(tag=tag), refusal:
            decode_hello(hello_fields({**FIELDS, tag: bytes(4)}))


def test_a_hello_that_is_cut_or_oversized_is_malformed() -> None:
    body = hello_fields(FIELDS)
    ends = {0}
    for tag in FIELDS:
        ends.add(max(ends) + 4 + len(FIELDS[tag]))
    for size in set(range(len(body))) - ends:
        with pytest.raises(MalformedFrameError, match=r"ends inside a field|longer than the hello"):
            decode_hello(body[:size])

    with pytest.raises(MalformedFrameError, match="hello field 2 is longer"):
        decode_hello(struct.pack(">HH", 2, 65_535) + b"alpha")

    padding = HELLO_BYTES_MAX - len(hello_fields(FIELDS)) - 4
    assert decode_hello(hello_fields({**FIELDS, 99: bytes(padding)})) == HELLO
    with pytest.raises(MalformedFrameError, match="is longer than"):
        decode_hello(hello_fields({**FIELDS, 99: bytes(padding + 1)}))
