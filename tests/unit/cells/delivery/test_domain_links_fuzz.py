"""The fuzz targets of cells find what they are there for."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from fuzz.mutation import mutate
from fuzz.replay import find_error
from fuzz.target import BrokenInvariant, Target
from fuzz.targets import TARGETS
from postroad.cells.delivery import domain_links as links
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.domain_links import DomainLink
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.envelope_codec import _FIXED, _HEAD, _KINDS, _decode_route, _decoder
from postroad.cells.delivery.propagator import RoutePropagator
from tests.support.tiers import by_tier

MUTATIONS = 200

Plant = Callable[[pytest.MonkeyPatch], None]


def find_failure(target: Target, mutations: int = MUTATIONS) -> BaseException | None:
    """The first error that the seeds, or random changes to them, provoke."""
    rng = Random(1)
    mutated = [mutate(rng, rng.choice(target.seeds)) for _ in range(mutations)]
    errors = (find_error(target, data) for data in (*target.seeds, *mutated))
    return next((error for error in errors if error is not None), None)


def unchecked(data: bytes) -> Envelope:
    """Read an envelope without a care."""
    begin = data[: _HEAD.size + int.from_bytes(data[1:3])]
    destination, source = _decode_route(begin)
    kind, _, id = _FIXED.unpack_from(data, len(begin))
    rest = _decoder.decode(data[len(begin) + _FIXED.size :])
    return Envelope(
        id=id,
        destination=destination,
        source=source,
        kind=_KINDS[kind],
        **{name: getattr(rest, name) for name in rest.__struct_fields__},
    )


def plant_unmapped_envelope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.targets.cells.decode_envelope", unchecked)


def plant_unmapped_envelope_in_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "decode_envelope", unchecked)


def plant_answered_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Envelope, "can_reply", property(lambda self: True))


def plant_unmapped_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fuzz.targets.cells.decode_routing_update", msgspec.msgpack.Decoder().decode
    )


def plant_unmapped_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fuzz.targets.cells.decode_body", lambda content_type, payload: payload.decode()
    )


def plant_news_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = RoutePropagator.receive

    def confused(self: RoutePropagator, link: DomainLink, payload: bytes) -> None:
        receive(self, self._links["S2"], payload)

    monkeypatch.setattr(RoutePropagator, "receive", confused)


def plant_chatter(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = MessageDispatcher._forward

    def twice(self: MessageDispatcher, *arguments: object) -> object:
        forward(self, *arguments)  # type: ignore[arg-type]
        forward(self, *arguments)  # type: ignore[arg-type]
        return forward(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MessageDispatcher, "_forward", twice)


@pytest.mark.parametrize(
    ("name", "plant", "error"),
    [
        ("cells-envelope", plant_unmapped_envelope, Exception),
        ("cells-envelope", plant_answered_answers, BrokenInvariant),
        ("cells-update", plant_unmapped_update, Exception),
        ("cells-payload", plant_unmapped_body, UnicodeDecodeError),
        ("cells-tunnel", plant_unmapped_envelope_in_a_tunnel, Exception),
        ("cells-tunnel", plant_news_of_others, BrokenInvariant),
        ("cells-tunnel", plant_chatter, BrokenInvariant),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, plant: Plant, error: type[Exception]
) -> None:
    plant(monkeypatch)
    assert isinstance(find_failure(TARGETS[name]), error)


@pytest.mark.parametrize("name", [target for target in TARGETS if target.startswith("cells-")])
def test_no_bug_is_reported_without_a_planted_one(name: str) -> None:
    mutations = by_tier(test=40, nightly=2_000, quick=10)
    assert find_failure(TARGETS[name], mutations) is None
