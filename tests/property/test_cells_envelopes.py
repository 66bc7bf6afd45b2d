"""What holds for all envelopes and updates, and for all bytes that could be one."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cells import (
    CellAddress,
    CellPath,
    Envelope,
    Failure,
    Kind,
    NoRoute,
    Offer,
    Snapshot,
    decode_envelope,
    decode_failure,
    decode_update,
    encode_envelope,
    encode_update,
    make_error_reply,
    make_reply,
)
from postroad.core.errors import MalformedPayload

addresses = st.sampled_from(
    [CellAddress.parse(text) for text in ("a@S1", "b@S2", "Q", "größe", "*@S1", "*@C1")]
)
ids = st.binary(min_size=16, max_size=16)
texts = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def paths(draw: st.DrawFn) -> CellPath:
    hops = tuple(draw(st.lists(addresses, max_size=6)))
    return CellPath(hops, draw(st.integers(0, len(hops))))


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    kind = draw(st.sampled_from(Kind))
    return Envelope(
        id=draw(ids),
        destination=draw(paths()),
        source=CellPath(draw(paths()).hops),
        kind=kind,
        answers=None if kind is Kind.MESSAGE else draw(ids),
        session=draw(st.none() | texts),
        ttl_ms=draw(st.none() | st.integers(0, 1 << 53)),
        is_quiet=draw(st.booleans()),
        wants_reply=draw(st.booleans()),
        headers=draw(st.none() | st.dictionaries(texts, texts, max_size=4)),
        content=draw(texts),
        payload=draw(st.binary(max_size=200)),
    )


SAMPLES: list[tuple[Callable[[bytes], object], bytes]] = [
    (
        decode_envelope,
        encode_envelope(
            Envelope(
                id=bytes(16),
                destination=CellPath.parse("b1@S2:T"),
                source=CellPath.parse("p@S1:*@S1"),
                session="s",
                ttl_ms=1_000,
                headers={"a": "b"},
                content="text",
                payload=b"hello",
            )
        ),
    ),
    (decode_update, encode_update(Snapshot(7, 3, Offer.of(["q", "r"], ["t"], "east")))),
    (
        decode_failure,
        make_error_reply(
            Envelope(id=bytes(16), destination=CellPath(), source=CellPath.parse("p@S1")),
            Failure.of(NoRoute, "why", hop=CellAddress("x"), at="S2"),
            id=bytes(16),
        ).payload,
    ),
]


@given(envelopes())
def test_an_envelope_is_read_back(envelope: Envelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


@given(st.sampled_from(SAMPLES), st.binary(max_size=60))
def test_any_bytes_are_read_or_malformed(
    sample: tuple[Callable[[bytes], object], bytes], data: bytes
) -> None:
    try:
        sample[0](data)
    except MalformedPayload:
        return


@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_bytes_are_read_or_malformed(
    sample: tuple[Callable[[bytes], object], bytes], data: st.DataObject
) -> None:
    decode, good = sample
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for attempt in (bytes(damaged), bytes(damaged[:cut])):
        try:
            decode(attempt)
        except MalformedPayload:
            continue


@given(st.sampled_from(SAMPLES), st.data())
def test_a_part_of_the_bytes_is_malformed(
    sample: tuple[Callable[[bytes], object], bytes], data: st.DataObject
) -> None:
    decode, good = sample
    cut = data.draw(st.integers(0, len(good) - 1))
    with pytest.raises(MalformedPayload):
        decode(good[:cut])


@given(envelopes(), ids, st.binary(max_size=50))
def test_a_reply_goes_to_whoever_sent_the_request(
    request: Envelope, id: bytes, payload: bytes
) -> None:
    if not request.is_answerable:
        return
    reply = make_reply(request, id=id, payload=payload)
    assert reply.destination.last == request.source.first
    assert reply.answers == request.id
    assert (reply.session, reply.ttl_ms) == (request.session, request.ttl_ms)
    assert reply.is_reply
    assert not reply.sent_by(CellAddress("a", "S1")).is_answerable


@given(envelopes(), st.lists(st.integers(0, 1 << 40), max_size=5))
def test_time_runs_down_by_all_that_passed(envelope: Envelope, parts: list[int]) -> None:
    aged = envelope
    for part in parts:
        aged = aged.aged(part)
    assert aged == envelope.aged(sum(parts))
    if aged.ttl_ms is not None and aged.handling_ms is not None:
        assert 0 <= aged.handling_ms <= aged.ttl_ms
