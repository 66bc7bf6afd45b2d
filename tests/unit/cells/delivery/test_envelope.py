"""Envelopes: what they carry, how they are answered, and which bytes are none."""

import struct
from typing import Any

import msgspec
import pytest

from postroad.cells import CellAddress, CellPath
from postroad.cells.delivery.envelope import (
    CONTENT_TYPE_BYTES_MAX,
    HEADER_NAME_BYTES_MAX,
    HEADER_VALUE_BYTES_MAX,
    HEADERS_MAX,
    SESSION_BYTES_MAX,
    TTL_MS_MAX,
    Envelope,
    MessageKind,
    make_reply,
)
from postroad.cells.delivery.envelope_codec import (
    decode_envelope,
    decode_short_reply,
    decode_short_request,
    encode_envelope,
    encode_reply,
    encode_request,
    encode_route,
    is_expired,
    route_prefix,
)
from postroad.core import errors

ONE, TWO = bytes(15) + b"\1", bytes(15) + b"\2"

FULL = Envelope(
    id=ONE,
    destination=CellPath.parse("b1@S2:T").advanced(),
    source=CellPath.parse("pub@S1:*@S1"),
    kind=MessageKind.REPLY,
    in_reply_to=TWO,
    session="größe",
    ttl_ms=TTL_MS_MAX,
    suppress_errors=True,
    wants_reply=True,
    headers={"traceparent": "00-1-2-01"},
    content_type="text",
    payload=bytes(range(256)),
)
PLAIN = Envelope(id=ONE, destination=CellPath.parse("T"))


def request(**changes: Any) -> Envelope:
    fields = {"id": ONE, "destination": CellPath.parse("Q"), "source": CellPath.parse("p@S1:*@S1")}
    return Envelope(**{**fields, **changes})


def test_an_envelope_is_read_back_and_as_it_is_described() -> None:
    for envelope in [PLAIN, FULL]:
        assert decode_envelope(encode_envelope(envelope)) == envelope, envelope

    assert encode_envelope(PLAIN) == written(ttl_ms=(1 << 64) - 1)
    assert decode_envelope(written()).ttl_ms == 5

    assert decode_envelope(written(rest=[*REST, "something new"])) == decode_envelope(written())


REST: list[Any] = [None, None, False, False, None, "", b""]
ROUTE = b"T@local\0" + b"0\0"


def written(
    route: bytes = ROUTE,
    *,
    version: int = 1,
    kind: int = 0,
    ttl_ms: int = 5,
    rest: Any = REST,
    size: int | None = None,
) -> bytes:
    """An envelope as somebody else may write it."""
    begin = struct.pack(">BH", version, len(route) if size is None else size)
    fixed = struct.pack(">BQ16s", kind, ttl_ms, ONE)
    return begin + route + fixed + msgspec.msgpack.encode(rest)


def test_bytes_that_are_no_envelope_are_malformed(subtests: pytest.Subtests) -> None:
    for data in [
        b"",
        b"\x01",
        b"\x01\0\0",
        written()[:-1],
        written()[:20],
        written(size=9_000),
        written(size=3),
        written(b"T@local\x002\0"),
        written(b"T@local\0-1\0"),
        written(b"T@local\0" + b"9" * 5_000 + b"\0"),
        written(b"T@local\0" + "\u0661".encode() + b"\0"),
        written(b"T@local"),
        written(b"T@local\x000\0p@S1\0more"),
        written(b"T@x@y\x000\0"),
        written(b"*@local\x000\0"),
        written(b"T\x000\0p q@S1"),
        written(b":".join([b"T@local"] * 65) + b"\x000\0"),
        written(b"\xff\x000\0"),
        written(kind=9),
        written(kind=1),
        written(rest=[TWO, *REST[1:]]),
        written(rest=[b"short", *REST[1:]]),
        written(rest=[None, "s" * (SESSION_BYTES_MAX + 1), *REST[2:]]),
        written(rest=REST[:3]),
        written(rest={"in_reply_to": None}),
        written(ttl_ms=TTL_MS_MAX + 1),
        written(rest=None)[:-1] + b"\x91" * 100_000,
    ]:
        with subtests.test(data=data):
            with pytest.raises(errors.MalformedPayloadError, match="malformed envelope") as caught:
                decode_envelope(data)
            assert isinstance(caught.value, errors.ProtocolError)

    with pytest.raises(
        errors.MalformedPayloadError, match="unsupported envelope version 2; supported: 1"
    ):
        decode_envelope(written(version=2))


def test_forwarding_domain_reads_only_the_routing_part() -> None:
    data = encode_envelope(FULL)
    begin = route_prefix(data)
    assert begin == encode_route(FULL.destination, FULL.source)
    assert not is_expired(data, len(begin))
    assert is_expired(data[: len(begin)], len(begin))
    late = encode_envelope(msgspec.structs.replace(FULL, ttl_ms=0))
    assert is_expired(late, len(route_prefix(late)))
    for_ever = encode_envelope(PLAIN)
    assert not is_expired(for_ever, len(route_prefix(for_ever)))


def test_short_layouts_are_those_of_all_envelopes(subtests: pytest.Subtests) -> None:
    source = CellPath.parse("p@S1:*@S1")
    route = encode_route(PLAIN.destination, source)
    for size in (0, 1, 255, 256, 70_000):
        payload = bytes(size)
        for ttl_ms in (1, TTL_MS_MAX):
            question = request(
                destination=PLAIN.destination, payload=payload, ttl_ms=ttl_ms, wants_reply=True
            )
            with subtests.test(size=size, ttl_ms=ttl_ms):
                data = encode_request(route, ttl_ms, ONE, payload)
                assert data == encode_envelope(question)
                expected = (ttl_ms, ONE, payload) if size < 256 else None
                assert decode_short_request(data, len(route)) == expected
        for ttl in (None, 1):
            for content_type in ("", "text"):
                reply = request(
                    destination=PLAIN.destination, kind=MessageKind.REPLY, in_reply_to=TWO,
                    ttl_ms=ttl, payload=payload, content_type=content_type,
                )  # fmt: skip
                with subtests.test(size=size, ttl_ms=ttl, content_type=content_type):
                    data = encode_reply(route, ttl, ONE, TWO, content_type, payload)
                    assert data == encode_envelope(reply)
                    is_short = size < 256 and not content_type
                    expected_reply = (TWO, payload) if is_short else None
                    assert decode_short_reply(data, len(route)) == expected_reply


def test_other_than_short_layouts_are_decoded_in_full(subtests: pytest.Subtests) -> None:
    at = len(encode_route(PLAIN.destination, request().source))
    others = [
        request(wants_reply=False),
        request(wants_reply=True, ttl_ms=0),
        request(wants_reply=True, session="s"),
        request(wants_reply=True, headers={"a": "b"}),
        request(wants_reply=True, suppress_errors=True),
        request(wants_reply=True, content_type="text"),
        request(kind=MessageKind.ERROR, in_reply_to=TWO),
        request(kind=MessageKind.REPLY, in_reply_to=TWO, session="s"),
    ]
    for envelope in others:
        with subtests.test(envelope=envelope):
            data = encode_envelope(msgspec.structs.replace(envelope, destination=PLAIN.destination))
            assert decode_short_request(data, at) is None
            assert decode_short_reply(data, at) is None
    route = encode_route(PLAIN.destination, request().source)
    ttl_of_nobody = (1 << 64) - 2
    for data, decode in [
        (encode_request(route, 1, ONE, b"abc"), decode_short_request),
        (encode_reply(route, 1, ONE, TWO, "", b"abc"), decode_short_reply),
    ]:
        wrong = [data[:end] for end in range(at, len(data))] + [data + b"x"]
        wrong.append(data[: at + 1] + ttl_of_nobody.to_bytes(8) + data[at + 9 :])
        assert [decode(data, at) for data in wrong] == [None] * len(wrong)
        assert decode(data, at) is not None


def test_an_envelope_has_a_limit_at_both_ends() -> None:
    size = len(encode_envelope(FULL))
    assert decode_envelope(encode_envelope(FULL, bytes_max=size), bytes_max=size) == FULL
    with pytest.raises(errors.MessageTooLargeError, match=f"{size} bytes"):
        encode_envelope(FULL, bytes_max=size - 1)
    with pytest.raises(errors.MalformedPayloadError, match=f"{size} bytes"):
        decode_envelope(encode_envelope(FULL), bytes_max=size - 1)

    hop = CellAddress("c" * 255, "d" * 255)
    long = msgspec.structs.replace(
        PLAIN, destination=CellPath((hop,) * 64), source=CellPath((hop,) * 64)
    )
    with pytest.raises(errors.MessageTooLargeError, match="are longer than 65535"):
        encode_envelope(long)


def test_impossible_envelope_fields_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"id": b"1"}, "id of 1 bytes"),
        ({"in_reply_to": b"1", "kind": MessageKind.REPLY}, "id of 1 bytes"),
        ({"kind": MessageKind.REPLY}, "in_reply_to None of kind reply"),
        ({"kind": MessageKind.ERROR}, "in_reply_to None of kind error"),
        ({"in_reply_to": TWO}, "of kind message"),
        ({"ttl_ms": -1}, "ttl_ms=-1"),
        ({"session": "s" * (SESSION_BYTES_MAX + 1)}, "session of 1025 bytes"),
        ({"session": "\ud800"}, "UTF-8"),
        ({"content_type": "c" * (CONTENT_TYPE_BYTES_MAX + 1)}, "content_type of 129 bytes"),
        ({"headers": {str(n): "" for n in range(HEADERS_MAX + 1)}}, "33 headers"),
        ({"headers": {"n" * (HEADER_NAME_BYTES_MAX + 1): ""}}, "header name of 129"),
        ({"headers": {"n": "v" * (HEADER_VALUE_BYTES_MAX + 1)}}, "header 'n' of 4097"),
        ({"headers": dict.fromkeys("ab", "v" * HEADER_VALUE_BYTES_MAX)}, "headers of 8194 bytes"),
    ]
    for changes, reason in cases:
        with subtests.test(reason=reason), pytest.raises(errors.ConfigError, match=reason):
            request(**changes)


def test_time_runs_down_to_nothing_and_some_is_kept_for_the_way_back() -> None:
    for ttl_ms, handling_budget_ms in [
        (1000, 900),
        (30_000, 27_000),
        (200_000, 190_000),
        (0, 0),
        (9, 9),
        (None, None),
    ]:
        assert request(ttl_ms=ttl_ms).handling_budget_ms == handling_budget_ms, ttl_ms

    message = request(ttl_ms=100)
    assert message.with_elapsed(40).ttl_ms == 60
    assert message.with_elapsed(40).with_elapsed(60).is_expired
    assert message.with_elapsed(1000).ttl_ms == 0
    assert message.with_elapsed(0) is message
    assert message.with_elapsed(-5) is message
    assert not message.is_expired

    assert request().with_elapsed(10**9) == request()
    assert not request().is_expired

    assert not request(kind=MessageKind.REPLY, in_reply_to=TWO, ttl_ms=0).is_expired


def test_reply_keeps_session_time_and_headers() -> None:
    question = request(session="s", ttl_ms=70, headers={"traceparent": "t"}, payload=b"question")
    reply = make_reply(question, id=TWO, payload=b"answer", content_type="text")
    assert reply == Envelope(
        id=TWO,
        destination=CellPath.parse("p@S1"),
        source=CellPath(),
        kind=MessageKind.REPLY,
        in_reply_to=ONE,
        session="s",
        ttl_ms=70,
        headers={"traceparent": "t"},
        content_type="text",
        payload=b"answer",
    )
    assert reply.is_reply

    assert not make_reply(request(wants_reply=True), id=TWO).wants_reply

    question = request(headers={"a": "1"})
    assert make_reply(question, id=TWO, headers={"b": "2"}).headers == {"b": "2"}


def test_unanswerable_envelope_is_refused(subtests: pytest.Subtests) -> None:
    for message in [
        request(source=CellPath()),
        request(source=CellPath.parse("*@C1:*@C1")),
        request(kind=MessageKind.REPLY, in_reply_to=TWO),
        request(kind=MessageKind.ERROR, in_reply_to=TWO),
    ]:
        with subtests.test(message=message):
            assert not message.can_reply
            with pytest.raises(errors.LocalProtocolError, match="cannot reply to"):
                make_reply(message, id=TWO)

    assert PLAIN.in_reply_to is None
    assert not PLAIN.is_reply

    sent = PLAIN.with_source_hop(CellAddress("p", "S1")).with_source_hop(
        CellAddress.of_domain("S1")
    )
    assert str(sent.source) == "p@S1:*@S1"
    assert PLAIN.source == CellPath()


def test_envelope_size_counts_every_field() -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"payload": bytes(1_000)}, 1_000),
        ({"session": "s" * 500}, 500),
        ({"headers": {"name": "v" * 3_000}}, 3_004),
    ]
    for changes, more in cases:
        assert request(**changes).memory_bytes == request().memory_bytes + more, more

    one, many = CellPath.parse("a@S1"), CellPath.parse(":".join(["a@S1"] * 11))
    hop = (request(source=many).memory_bytes - request(source=one).memory_bytes) / 10
    assert hop > 100
    assert (
        request(destination=many).memory_bytes - request(destination=one).memory_bytes == 10 * hop
    )

    assert request().memory_bytes > 500
