"""What holds for all addresses, paths, envelopes and updates, and for bytes that may be one."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cells import CellAddress, CellPath, NoRouteError
from postroad.cells.addresses import HOPS_MAX
from postroad.cells.delivery.envelope import Envelope, MessageKind, make_reply
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope
from postroad.cells.delivery.failure import DeliveryFailure, decode_failure, make_error_reply
from postroad.cells.routing.advertisements import (
    AdvertisementUpdate,
    RouteAdvertisement,
    decode_routing_update,
    encode_routing_update,
)
from postroad.core.errors import ConfigError, LocalProtocolError, MalformedPayloadError

any_names = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"], exclude_characters="@:*/\\"),
    min_size=1,
    max_size=8,
)


any_domains = any_names.filter(lambda name: name != "local")


any_addresses = st.one_of(
    st.builds(CellAddress, any_names, any_domains),
    st.builds(CellAddress, any_names),
    st.builds(CellAddress.of_domain, any_domains),
)


cells = st.sampled_from([CellAddress.parse(text) for text in ("a@S1", "a@S2", "b@S1", "local@C1")])


logical = st.sampled_from([CellAddress.parse(text) for text in ("a", "Q", "T")])


routers = st.sampled_from([CellAddress.of_domain(text) for text in ("S1", "S2", "C1")])


hops = st.one_of(cells, logical, routers)


@st.composite
def paths(draw: st.DrawFn, hops: st.SearchStrategy[CellAddress] = hops) -> CellPath:
    chosen = tuple(draw(st.lists(hops, max_size=8)))
    return CellPath(chosen, draw(st.integers(0, len(chosen))))


@given(any_addresses)
def test_an_address_is_read_as_it_is_written(address: CellAddress) -> None:
    assert CellAddress.parse(str(address)) == address


@given(st.text(max_size=12))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = CellAddress.parse(text)
    except ConfigError:
        return
    assert CellAddress.parse(str(address)) == address
    assert str(address) in (text, f"{text}@local", f"{text}local")


@given(paths())
def test_a_path_is_read_as_it_is_written(path: CellPath) -> None:
    assert CellPath.parse(str(path)) == CellPath(path.hops)


@given(paths())
def test_a_path_is_walked_once_and_keeps_all_hops(path: CellPath) -> None:
    walked = path
    taken = []
    while not walked.is_complete:
        taken.append(walked.current)
        walked = walked.advanced()
    assert tuple(taken) == path.hops[path.position :]
    assert walked.hops == path.hops
    with pytest.raises(LocalProtocolError):
        walked.advanced()


@given(paths(), hops)
def test_another_hop_in_its_place_changes_nothing_else(path: CellPath, hop: CellAddress) -> None:
    if path.is_complete:
        path = CellPath((*path.hops, hop), path.position)
    changed = path.with_current(hop)
    assert changed.current == hop
    assert changed.advanced().hops[path.position + 1 :] == path.hops[path.position + 1 :]
    assert changed.with_current(path.current) == path


@given(paths(cells))
def test_reversing_cells_twice_changes_nothing(path: CellPath) -> None:
    assert path.reversed().hops == path.hops[::-1]
    assert path.reversed().reversed() == CellPath(path.hops)


@given(paths(st.one_of(cells, routers)))
def test_the_way_back_has_the_cells_alone(path: CellPath) -> None:
    back = path.reversed()
    assert back.hops == tuple(hop for hop in path.hops[::-1] if not hop.is_domain)
    assert back.position == 0


@given(paths())
def test_the_way_back_has_every_cell_and_what_resolves_a_logical_name(path: CellPath) -> None:
    back = path.reversed()
    assert [hop for hop in back.hops if not hop.is_domain] == [
        hop for hop in path.hops[::-1] if not hop.is_domain
    ]
    for place, hop in enumerate(back.hops):
        if hop.is_domain:
            assert back.hops[place + 1].is_local
    assert len(back) <= len(path) <= HOPS_MAX
    assert CellPath(back.hops[::-1]).reversed() == back


some_addresses = st.sampled_from(
    [CellAddress.parse(text) for text in ("a@S1", "b@S2", "Q", "größe", "*@S1", "*@C1")]
)


ids = st.binary(min_size=16, max_size=16)


texts = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def some_paths(draw: st.DrawFn) -> CellPath:
    hops = tuple(draw(st.lists(some_addresses, max_size=6)))
    return CellPath(hops, draw(st.integers(0, len(hops))))


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    kind = draw(st.sampled_from(MessageKind))
    return Envelope(
        id=draw(ids),
        destination=draw(some_paths()),
        source=CellPath(draw(some_paths()).hops),
        kind=kind,
        in_reply_to=None if kind is MessageKind.MESSAGE else draw(ids),
        session=draw(st.none() | texts),
        ttl_ms=draw(st.none() | st.integers(0, 1 << 53)),
        suppress_errors=draw(st.booleans()),
        wants_reply=draw(st.booleans()),
        headers=draw(st.none() | st.dictionaries(texts, texts, max_size=4)),
        content_type=draw(texts),
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
                content_type="text",
                payload=b"hello",
            )
        ),
    ),
    (
        decode_routing_update,
        encode_routing_update(
            AdvertisementUpdate(7, 3, RouteAdvertisement.of(["q", "r"], ["t"], "east"))
        ),
    ),
    (
        decode_failure,
        make_error_reply(
            Envelope(id=bytes(16), destination=CellPath(), source=CellPath.parse("p@S1")),
            DeliveryFailure.of(NoRouteError, "why", hop=CellAddress("x"), at="S2"),
            id=bytes(16),
        ).payload,
    ),
]


@given(envelopes())
def test_an_envelope_is_read_back(envelope: Envelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


@given(st.sampled_from(SAMPLES), st.data())
def test_any_damaged_or_cut_bytes_are_read_or_malformed(
    sample: tuple[Callable[[bytes], object], bytes], data: st.DataObject
) -> None:
    decode, good = sample
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for attempt in (data.draw(st.binary(max_size=60)), bytes(damaged), bytes(damaged[:cut])):
        with suppress(MalformedPayloadError):
            decode(attempt)
    with pytest.raises(MalformedPayloadError):
        decode(good[: data.draw(st.integers(0, len(good) - 1))])


@given(envelopes(), ids, st.binary(max_size=50))
def test_a_reply_goes_to_whoever_sent_the_request(
    request: Envelope, id: bytes, payload: bytes
) -> None:
    if not request.can_reply:
        return
    reply = make_reply(request, id=id, payload=payload)
    assert reply.destination.last == request.source.first
    assert reply.in_reply_to == request.id
    assert (reply.session, reply.ttl_ms) == (request.session, request.ttl_ms)
    assert reply.is_reply
    assert not reply.with_source_hop(CellAddress("a", "S1")).can_reply


@given(envelopes(), st.lists(st.integers(0, 1 << 40), max_size=5))
def test_time_runs_down_by_all_that_passed(envelope: Envelope, parts: list[int]) -> None:
    aged = envelope
    for part in parts:
        aged = aged.with_elapsed(part)
    assert aged == envelope.with_elapsed(sum(parts))
    if aged.ttl_ms is not None and aged.handling_budget_ms is not None:
        assert 0 <= aged.handling_budget_ms <= aged.ttl_ms
