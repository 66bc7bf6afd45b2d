"""The body of a version 3 hello."""

import struct

import msgspec
import pytest

from postroad.core.address import Address
from postroad.core.errors import MalformedFrame
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.wire.frames import Hello
from postroad.wire.hello import Tag, decode_hello, encode_hello
from tests.support.wire.pairs import hello_fields

HELLO = Hello(
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


def test_layout() -> None:
    assert encode_hello(HELLO) == hello_fields(FIELDS)
    assert decode_hello(hello_fields(FIELDS)) == HELLO


def test_order_does_not_matter() -> None:
    assert decode_hello(hello_fields(dict(reversed(FIELDS.items())))) == HELLO


def test_unknown_fields_are_skipped() -> None:
    assert decode_hello(hello_fields({**FIELDS, 15: b"later", 65_535: b""})) == HELLO


def test_a_member_says_so_and_nobody_else() -> None:
    member = msgspec.structs.replace(HELLO, is_member=True)
    assert encode_hello(member) == encode_hello(HELLO) + bytes.fromhex("000a 0001 01")
    assert decode_hello(encode_hello(member)) == member


def test_the_part_among_cells_is_told_once_there_is_one() -> None:
    part = msgspec.structs.replace(HELLO, role="core", zone="süd")
    told = bytes.fromhex("000b 0004 636f7265  000c 0004 73c3bc64")
    assert encode_hello(part) == encode_hello(HELLO) + told
    assert decode_hello(encode_hello(part)) == part


def test_a_client_says_that_it_wants_a_tunnel() -> None:
    tunnel = msgspec.structs.replace(HELLO, is_tunnel=True)
    assert encode_hello(tunnel) == encode_hello(HELLO) + bytes.fromhex("000d 0001 01")
    assert decode_hello(encode_hello(tunnel)) == tunnel


@pytest.mark.parametrize(("tag", "name"), [(11, "role"), (12, "zone")])
def test_the_part_among_cells_is_short(tag: int, name: str) -> None:
    longest = decode_hello(hello_fields({**FIELDS, tag: b"p" * 255}))
    assert getattr(longest, name) == "p" * 255
    with pytest.raises(MalformedFrame, match=f"hello {name} has 256 bytes"):
        decode_hello(hello_fields({**FIELDS, tag: b"p" * 256}))


def test_a_field_given_twice_counts_the_last_time() -> None:
    body = hello_fields({2: b"beta"}) + hello_fields(FIELDS)
    assert decode_hello(body).name == "alpha"


def test_missing_fields_take_their_default() -> None:
    body = hello_fields({tag: FIELDS[tag] for tag in REQUIRED})
    assert decode_hello(body) == Hello("c", "alpha", 2**64 - 1, Address("", 0), 4_194_304, 1)


@pytest.mark.parametrize(("tag", "name"), REQUIRED.items())
def test_required_fields(tag: int, name: str) -> None:
    fields = {known: value for known, value in FIELDS.items() if known != tag}
    with pytest.raises(MalformedFrame, match=f"hello lacks its {name}"):
        decode_hello(hello_fields(fields))


@pytest.mark.parametrize("tag", [3, 5, 6, 7, 8, 10, 13])
@pytest.mark.parametrize("change", [b"", b"\x01" * 3, b"\x01" * 9])
def test_numbers_have_their_width(tag: int, change: bytes) -> None:
    with pytest.raises(MalformedFrame, match=f"hello {Tag(tag).name.lower()} has {len(change)}"):
        decode_hello(hello_fields({**FIELDS, tag: change}))


@pytest.mark.parametrize("tag", [1, 2, 4, 9, 11, 12])
def test_texts_are_utf8(tag: int) -> None:
    with pytest.raises(MalformedFrame, match=f"hello {Tag(tag).name.lower()} is not valid UTF-8"):
        decode_hello(hello_fields({**FIELDS, tag: b"\xff"}))


@pytest.mark.parametrize("name", [b"", b"local", b"a@b", b"a b", b"n" * 256])
def test_the_name_is_a_node_name(name: bytes) -> None:
    with pytest.raises(MalformedFrame, match=r"hello: .*node name"):
        decode_hello(hello_fields({**FIELDS, 2: name}))


@pytest.mark.parametrize("tag", [6, 7])
def test_a_peer_accepts_at_least_something(tag: int) -> None:
    with pytest.raises(MalformedFrame, match="accepts no frames or no requests"):
        decode_hello(hello_fields({**FIELDS, tag: bytes(4)}))


def test_a_hello_that_ends_early() -> None:
    body = hello_fields(FIELDS)
    ends = {0}
    for tag in FIELDS:
        ends.add(max(ends) + 4 + len(FIELDS[tag]))
    for size in set(range(len(body))) - ends:
        with pytest.raises(MalformedFrame, match=r"ends inside a field|longer than the hello"):
            decode_hello(body[:size])


def test_a_field_longer_than_the_hello() -> None:
    with pytest.raises(MalformedFrame, match="hello field 2 is longer"):
        decode_hello(struct.pack(">HH", 2, 65_535) + b"alpha")


def test_an_oversized_hello() -> None:
    padding = HELLO_BYTES_MAX - len(hello_fields(FIELDS)) - 4
    assert decode_hello(hello_fields({**FIELDS, 99: bytes(padding)})) == HELLO
    with pytest.raises(MalformedFrame, match="is longer than"):
        decode_hello(hello_fields({**FIELDS, 99: bytes(padding + 1)}))
