"""Routing decisions of a domain with 10,000 routes, in one process, and the coding of envelopes.

All messages were decoded before, as those of a peer are, and their names and ids differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from benchmarks.harness import Comparison, Contender, Section
from postroad.cells import CellAddress, CellPath, Role, Route, RouteTable
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.envelope import Envelope, make_reply
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope
from postroad.cells.routing.decision import LOCAL_ORIGIN, MessageOrigin
from postroad.cells.routing.decision_cache import RoutingDecisionCache
from postroad.cells.routing.router import route_message

if TYPE_CHECKING:
    from benchmarks.harness import Settings

T = TypeVar("T")

DECISIONS_GOAL_PER_S = 300_000
ROUTES = 10_000
PEERS = 200
MESSAGES = 4_000
NAMES = 50
WIDE_QUEUE = 8
SEED = 1
# Short, so that the best one was not disturbed by others on the machine.
BATCHES_PER_S = 100

CORE = DomainInfo("core1", Role.CORE)
SATELLITE = DomainInfo("sat1", Role.SATELLITE)
FROM_SATELLITE = MessageOrigin.from_peer("sat9", Role.SATELLITE)


class Place(NamedTuple):
    """A domain with its routes and cells."""

    domain: DomainInfo
    table: RouteTable
    cells: frozenset[str]


def make_core() -> Place:
    """Gateways to many satellites, and their queues and topics."""
    gateways = [f"to-sat{number}" for number in range(PEERS)]
    routes = [Route.to_queue("wide", domain_of(number)) for number in range(WIDE_QUEUE)]
    for number, gateway in enumerate(gateways):
        routes.append(Route.to_domain(f"sat{number}", CellAddress(gateway, CORE.name)))
    half = (ROUTES - len(routes)) // 2
    routes += [Route.to_queue(f"queue{number}", domain_of(number)) for number in range(half)]
    routes += [Route.to_topic(f"topic{number}", domain_of(number)) for number in range(half)]
    return Place(CORE, RouteTable(routes), frozenset([*gateways, "here"]))


def make_satellite() -> Place:
    """Two cores, either of which takes what is not known here, and their queues."""
    routes = []
    for name in ("core1", "core2"):
        routes.append(Route.default(CellAddress.of_domain(name)))
        routes.append(Route.to_domain(name, CellAddress(f"to-{name}", SATELLITE.name)))
    cores = [CellAddress.of_domain("core1"), CellAddress.of_domain("core2")]
    count = ROUTES - len(routes)
    routes += [Route.to_queue(f"queue{number}", cores[number % 2]) for number in range(count)]
    return Place(SATELLITE, RouteTable(routes), frozenset(["to-core1", "to-core2", "here"]))


def domain_of(number: int) -> CellAddress:
    return CellAddress.of_domain(f"sat{number % PEERS}")


class Case(NamedTuple):
    """Messages of one kind."""

    title: str
    place: Place
    origin: MessageOrigin
    envelopes: list[Envelope]


def cases() -> Iterator[Case]:
    """What domains decide most often."""
    core, satellite = make_core(), make_satellite()
    sent = partial(make_envelopes, source="cell@sat9:*@sat9")
    requests = sent(lambda number: f"cell{number % NAMES}@sat{number % 8 + 1}")
    yield Case("cell@domain at a core", core, FROM_SATELLITE, requests)
    yield Case("reply at a core", core, FROM_SATELLITE, make_replies())
    yield Case("local cell", core, FROM_SATELLITE, sent(lambda _: "here"))
    yield Case("queue, 1 route", core, FROM_SATELLITE, sent(lambda number: f"queue{number % 8}"))
    yield Case(f"queue, {WIDE_QUEUE} routes", core, FROM_SATELLITE, sent(lambda _: "wide"))
    leaving = make_envelopes(lambda number: f"name{number % NAMES}", source="cell@sat1")
    yield Case("default route at a satellite", satellite, LOCAL_ORIGIN, leaving)


def make_envelopes(path: Callable[[int], str], source: str) -> list[Envelope]:
    """Messages as they come out of a tunnel."""
    random = Random(SEED)
    made = [
        Envelope(
            id=random.randbytes(16),
            destination=CellPath.parse(path(number)),
            source=CellPath.parse(source),
            ttl_ms=30_000,
            payload=bytes(100),
        )
        for number in range(MESSAGES)
    ]
    return [decode_envelope(encode_envelope(it)) for it in made]


def make_replies() -> list[Envelope]:
    """Answers of one cell to cells elsewhere."""
    asked = make_envelopes(lambda _: "cell@sat9", source="asker@sat1:*@sat1:*@core1")
    sender = CellAddress("cell", "sat9")
    return [make_reply(it, id=it.id, payload=it.payload).with_source_hop(sender) for it in asked]


# Measuring.


def measure(step: Callable[[T], object], items: Sequence[T], seconds: float) -> float:
    """Steps in a second of processor time, in the best of many short batches."""
    for item in items:
        step(item)
    best = 0.0
    for _ in range(max(1, int(seconds * BATCHES_PER_S))):
        began = thread_time()
        for item in items:
            step(item)
        best = max(best, len(items) / (thread_time() - began))
    return best


def measure_switch(case: Case, seconds: float) -> float:
    switch = RoutingDecisionCache(case.place.domain)
    switch.update(case.place.table, case.place.cells)
    return measure(lambda it: switch.decide(it, case.origin), case.envelopes, seconds)


def measure_function(case: Case, seconds: float) -> float:
    place = case.place
    decide = partial(
        route_message,
        origin=case.origin,
        table=place.table,
        cells=place.cells,
        domain=place.domain,
    )
    return measure(decide, case.envelopes, seconds)


def sections(settings: Settings) -> list[Section]:
    """Each kind of decision, then coding."""
    seconds = settings.seconds / 10
    decisions = [_decision_section(it, seconds) for it in cases()]
    envelopes = make_envelopes(lambda number: f"cell@sat{number % PEERS}", "cell@sat9:*@sat9")
    return [*decisions, _coding_section(envelopes, seconds)]


def _decision_section(case: Case, seconds: float) -> Section:
    """The switch against the goal, and next to the function that it stands for."""
    return Section(
        title=case.title,
        unit="decisions/s",
        contenders=[
            Contender("switch", partial(measure_switch, case, seconds)),
            Contender("route_message", partial(measure_function, case, seconds)),
        ],
        comparisons=[
            Comparison(case.title, "switch", "goal", 1.0, budget=DECISIONS_GOAL_PER_S),
            Comparison(case.title, "switch", "route_message"),
        ],
    )


def _coding_section(envelopes: list[Envelope], seconds: float) -> Section:
    encoded = [encode_envelope(it) for it in envelopes]
    return Section(
        title="an envelope with 100 bytes of payload",
        unit="envelopes/s",
        contenders=[
            Contender("encode", partial(measure, encode_envelope, envelopes, seconds)),
            Contender("decode", partial(measure, decode_envelope, encoded, seconds)),
        ],
        comparisons=[Comparison("decoding next to encoding", "decode", "encode")],
    )
