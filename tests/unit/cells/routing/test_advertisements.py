"""Routing updates: sorted advertisements, and malformed bytes."""

import msgspec
import pytest

from postroad.cells.routing.advertisements import (
    DIGEST_BYTES,
    NAMES_MAX,
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    RoutingUpdate,
    ShutdownNotice,
    decode_routing_update,
    encode_routing_update,
)
from postroad.core.errors import ConfigError, MalformedPayloadError

OFFER = RouteAdvertisement.of(["q2", "q1", "q2"], ["t"], "east")


def test_an_update_is_read_back() -> None:
    updates: list[RoutingUpdate] = [
        AdvertisementUpdate(7, 3, OFFER),
        AdvertisementUpdate(7, 3, RouteAdvertisement()),
        AdvertisementQuery(),
        AdvertisementAck(7, 3, OFFER.digest()),
        ShutdownNotice(7),
    ]
    for update in updates:
        assert decode_routing_update(encode_routing_update(update)) == update, update

    assert RouteAdvertisement(("q1", "q2"), ("t",), "east") == OFFER

    advertisements = [
        RouteAdvertisement(),
        OFFER,
        RouteAdvertisement(("q",)),
        RouteAdvertisement((), ("q",)),
        RouteAdvertisement(zone="q"),
        RouteAdvertisement(("q", "r")),
    ]
    digests = {advertisement.digest() for advertisement in advertisements}
    assert len(digests) == len(advertisements)
    assert {len(digest) for digest in digests} == {DIGEST_BYTES}
    assert OFFER.digest() == RouteAdvertisement.of(["q1", "q2"], ["t"], "east").digest()


def test_a_bad_offer_is_refused(subtests: pytest.Subtests) -> None:
    for queues, reason in [
        (("b", "a"), "sorted and unique"),
        (("a", "a"), "sorted and unique"),
        (("a b",), "contains"),
        (tuple(f"{n:05}" for n in range(NAMES_MAX + 1)), "8193 names"),
    ]:
        with subtests.test(reason=reason), pytest.raises(ConfigError, match=reason):
            RouteAdvertisement(queues)

    names = [f"{n:0255}" for n in range(NAMES_MAX)]
    with pytest.raises(ConfigError, match="advertisement of 4177920 bytes"):
        RouteAdvertisement.of(names, names)
    assert len(RouteAdvertisement.of(names).queues) == NAMES_MAX

    with pytest.raises(ConfigError, match="zone"):
        RouteAdvertisement(zone="a b")


def test_bytes_that_are_no_update_are_malformed(subtests: pytest.Subtests) -> None:
    for data in [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([9]),
        msgspec.msgpack.encode([1, 7]),
        msgspec.msgpack.encode([1, -1, 3, [[], []]]),
        msgspec.msgpack.encode([1, 7, 3, [["b", "a"], []]]),
        msgspec.msgpack.encode([1, 7, 3, [["a@b"], []]]),
        msgspec.msgpack.encode([3, 7, 3, bytes(DIGEST_BYTES + 1)]),
        msgspec.msgpack.encode([4, 1 << 63]),
        b"\x94\x01\x07\x03\x91\x91\xa1\xff",
        b"\x91" * 100_000,
    ]:
        with (
            subtests.test(data=data),
            pytest.raises(MalformedPayloadError, match="malformed routing update"),
        ):
            decode_routing_update(data)
