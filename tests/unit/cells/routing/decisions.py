"""Routing decisions of one satellite that has two cores and another satellite as peers."""

from __future__ import annotations

from postroad.cells import CellAddress, Role, Route, RouteTable
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.routing.decision import LOCAL_ORIGIN, MessageOrigin, RoutingDecision
from postroad.cells.routing.router import route_message
from tests.support.cells.networks import make_envelope

S1 = DomainInfo("S1", Role.SATELLITE, "east")
CELLS = {"a", "b", "to-C1", "to-C2", "to-S2"}
FROM_CORE = MessageOrigin.from_peer("C1", Role.CORE)
FROM_SATELLITE = MessageOrigin.from_peer("S2", Role.SATELLITE)


def at(text: str) -> CellAddress:
    return CellAddress.parse(text)


LINKS = [Route.to_domain(name, at(f"to-{name}@S1")) for name in ("C1", "C2", "S2")]


def decide(
    path: str | Envelope,
    *routes: Route,
    origin: MessageOrigin = LOCAL_ORIGIN,
    domain: DomainInfo = S1,
    draining: frozenset[str] = frozenset(),
    avoid: frozenset[str] = frozenset(),
) -> RoutingDecision:
    envelope = make_envelope(path, "p@S1") if isinstance(path, str) else path
    table = RouteTable([*LINKS, *routes])
    return route_message(
        envelope, origin, table=table, cells=CELLS, domain=domain, draining=draining, avoid=avoid
    )


def cells_of(decision: RoutingDecision) -> list[str]:
    return [delivery.cell for delivery in decision.deliveries]


def gateways_of(decision: RoutingDecision) -> list[str]:
    return [forward.gateway for forward in decision.forwards]


def failure_of(decision: RoutingDecision) -> tuple[int, str]:
    assert decision.failure is not None
    return decision.failure.code, decision.failure.text


DEFAULTS = [Route.default(at("*@C1")), Route.default(at("*@C2"))]
