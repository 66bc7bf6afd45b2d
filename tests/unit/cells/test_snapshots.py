"""Updates of routes: offers in order, and which bytes are no update."""

import msgspec
import pytest

from postroad.cells import (
    Check,
    Have,
    Leaving,
    Offer,
    Snapshot,
    Update,
    decode_update,
    encode_update,
)
from postroad.cells.snapshots import DIGEST_BYTES, NAMES_MAX
from postroad.core.errors import ConfigError, MalformedPayload

OFFER = Offer.of(["q2", "q1", "q2"], ["t"], "east")


@pytest.mark.parametrize(
    "update",
    [
        Snapshot(7, 3, OFFER),
        Snapshot(7, 3, Offer()),
        Check(),
        Have(7, 3, OFFER.digest()),
        Leaving(7),
    ],
)
def test_an_update_is_read_back(update: Update) -> None:
    assert decode_update(encode_update(update)) == update


def test_an_offer_has_each_name_once_and_in_order() -> None:
    assert Offer(("q1", "q2"), ("t",), "east") == OFFER


def test_the_digest_tells_offers_apart() -> None:
    offers = [Offer(), OFFER, Offer(("q",)), Offer((), ("q",)), Offer(zone="q"), Offer(("q", "r"))]
    digests = {it.digest() for it in offers}
    assert len(digests) == len(offers)
    assert {len(it) for it in digests} == {DIGEST_BYTES}
    assert OFFER.digest() == Offer.of(["q1", "q2"], ["t"], "east").digest()


@pytest.mark.parametrize(
    ("queues", "reason"),
    [
        (("b", "a"), "in order"),
        (("a", "a"), "in order"),
        (("a b",), "contains"),
        (tuple(f"{n:05}" for n in range(NAMES_MAX + 1)), "8193 names"),
    ],
)
def test_a_bad_offer_is_refused(queues: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Offer(queues)


def test_all_names_together_have_a_limit() -> None:
    names = [f"{n:0255}" for n in range(NAMES_MAX)]
    with pytest.raises(ConfigError, match="names of 4177920 bytes"):
        Offer.of(names, names)
    assert len(Offer.of(names).queues) == NAMES_MAX


def test_a_bad_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="zone"):
        Offer(zone="a b")


@pytest.mark.parametrize(
    "data",
    [
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
    ],
)
def test_bytes_that_are_no_update(data: bytes) -> None:
    with pytest.raises(MalformedPayload, match="no update"):
        decode_update(data)
