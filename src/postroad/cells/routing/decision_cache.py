"""Routing decisions that are remembered: what `route_message` decides, at the price of a lookup.

A decision depends on the hop of a message, on what its origin allows, for some routes on the
domains that had it before, and for a queue with several routes on its id. So what was decided for
one message is a plan for all others that are alike in this. Nothing is decided here: plans are
made of decisions, and whatever is unusual is routed in full each time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from postroad.cells.addresses import ANY, CellAddress, DomainInfo
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.routing.decision import (
    LOCAL_ORIGIN,
    Forward,
    LocalDelivery,
    MessageOrigin,
    RoutingContext,
    RoutingDecision,
)
from postroad.cells.routing.rendezvous import NUMBER_MASK, candidate_weight, message_weight
from postroad.cells.routing.route import RouteType
from postroad.cells.routing.route_table import RouteTable
from postroad.cells.routing.router import SOURCE_HOPS_MAX, RouteResolution


class ForwardPlan:
    """To hand all messages that are alike to one gateway."""

    __slots__ = ("_gateway", "_selected_target", "_sender", "depends_on_domains")
    size = 1

    def __init__(
        self, forward: Forward, sender: CellAddress, depends_on_domains: frozenset[str]
    ) -> None:
        self._gateway = forward.gateway
        self._selected_target = forward.selected_target
        self._sender = sender
        self.depends_on_domains = depends_on_domains

    def apply(self, envelope: Envelope) -> RoutingDecision:
        """The decision for one message."""
        outgoing = envelope.with_source_hop(self._sender)
        return RoutingDecision((), (Forward(self._gateway, outgoing, self._selected_target),))


class DeliverPlan:
    """To deliver them to one cell."""

    __slots__ = ("_address", "_cell", "_route_name", "depends_on_domains")
    size = 1

    def __init__(
        self, delivery: LocalDelivery, address: CellAddress, depends_on_domains: frozenset[str]
    ) -> None:
        self._cell = delivery.cell
        self._route_name = delivery.route_name
        self._address = address
        self.depends_on_domains = depends_on_domains

    def apply(self, envelope: Envelope) -> RoutingDecision:
        """The decision for one message."""
        delivered = envelope.with_destination(envelope.destination.delivered_to(self._address))
        return RoutingDecision((LocalDelivery(self._cell, delivered, self._route_name),))


class FanOutPlan:
    """To do any number of both: the copies of a topic."""

    __slots__ = ("_parts", "depends_on_domains", "size")

    def __init__(
        self, parts: list[ForwardPlan | DeliverPlan], depends_on_domains: frozenset[str]
    ) -> None:
        self.size = len(parts) + 1
        self._parts = parts
        self.depends_on_domains = depends_on_domains

    def apply(self, envelope: Envelope) -> RoutingDecision:
        """The decision for one message."""
        decisions = [part.apply(envelope) for part in self._parts]
        return RoutingDecision(
            tuple([delivery for decision in decisions for delivery in decision.deliveries]),
            tuple([forward for decision in decisions for forward in decision.forwards]),
        )


RoutingPlan: TypeAlias = ForwardPlan | DeliverPlan | FanOutPlan


def make_plan(
    decision: RoutingDecision, depends_on_domains: frozenset[str], domain: CellAddress
) -> RoutingPlan:
    """A plan of what was decided, by the domain of this address, for one message."""
    parts: list[ForwardPlan | DeliverPlan] = [
        DeliverPlan(delivery, CellAddress(delivery.cell, domain.domain), depends_on_domains)
        for delivery in decision.deliveries
    ]
    parts += [ForwardPlan(forward, domain, depends_on_domains) for forward in decision.forwards]
    return parts[0] if len(parts) == 1 else FanOutPlan(parts, depends_on_domains)


class BalancedPlan:
    """The routes of a queue that messages are spread over, and a plan for each.

    Plans come one by one, each from the first message that goes by that route. What those
    messages passed over is passed over by all.
    """

    __slots__ = ("_candidates", "_open_targets", "_plans", "depends_on_domains", "size")

    def __init__(self, resolution: RouteResolution, context: RoutingContext) -> None:
        self.depends_on_domains = frozenset(resolution.depends_on_domains)
        self.size = len(resolution.candidates)
        # The routes that were not passed over so far, and whether they are in the own zone.
        self._open_targets = {
            route.target_name: context.is_same_zone(route) for route in resolution.candidates
        }
        self._plans: dict[str, RoutingPlan] = {}
        self._candidates: list[tuple[int, RoutingPlan | None]] = []

    @property
    def has_open_targets(self) -> bool:
        """Whether any of the routes leads anywhere, as far as is known."""
        return bool(self._open_targets)

    def pick(self, id: bytes) -> RoutingPlan | None:
        """The plan for a message; None if its best route was not tried so far."""
        message = message_weight(id)
        best, winner = -1, None
        for number, plan in self._candidates:
            score = message * number & NUMBER_MASK
            if score > best:
                best, winner = score, plan
        return winner

    def record(self, resolution: RouteResolution, plan: RoutingPlan) -> None:
        """Keep which route a message went by, and which better ones lead nowhere."""
        for route in resolution.candidates:
            if route is resolution.selected_route:
                self._plans[route.target_name] = plan
                break
            self._open_targets.pop(route.target_name, None)
        same_zone = [name for name, is_same_zone in self._open_targets.items() if is_same_zone]
        # Of equal scores that of the higher name counts, which comes first.
        names = sorted(same_zone or self._open_targets, reverse=True)
        self._candidates = [(candidate_weight(name), self._plans.get(name)) for name in names]


PLANS_MAX = 8_192
"""There must be a limit, since it is peers who choose the names."""

_NO_NAMES: frozenset[str] = frozenset()

_RouteKey: TypeAlias = tuple[str, str, bool, bool]
"""The hop, and what the origin allows."""
_Key: TypeAlias = _RouteKey | tuple[_RouteKey, frozenset[str]]
"""With the domains that had the message before, where that matters."""


class RoutingDecisionCache:
    """Decides like `route_message`, but for the trace, which may be empty.

    Args:
        domain: this domain; it has no cells and no routes until the first update.
        remembered_max: plans, and candidates of queues, before all are forgotten.
    """

    def __init__(self, domain: DomainInfo, *, plans_max: int = PLANS_MAX) -> None:
        self._domain = domain
        self._plans_max = plans_max
        # By hop, and by domain where all its cells are reached the same way.
        self._plans: dict[_Key, RoutingPlan | BalancedPlan] = {}
        self._by_domain: dict[str, RoutingPlan] = {}
        self._capacity = plans_max
        self.update(RouteTable(), ())

    def update(
        self, table: RouteTable, cells: Collection[str], draining: Collection[str] = ()
    ) -> None:
        """Decide by these from now on, see `route_message`; all plans are forgotten."""
        self._context = RoutingContext(self._domain, table, frozenset(cells), frozenset(draining))
        self._clear()

    def decide(
        self,
        envelope: Envelope,
        origin: MessageOrigin = LOCAL_ORIGIN,
        avoid: frozenset[str] = _NO_NAMES,
    ) -> RoutingDecision:
        """Decide what becomes of a message."""
        path = envelope.destination
        hops = path.hops
        position = path.position
        if (
            avoid
            or not origin.allow_fan_out
            or position == len(hops)
            or len(envelope.source.hops) > SOURCE_HOPS_MAX
            or (envelope.ttl_ms == 0 and envelope.kind is MessageKind.MESSAGE)
        ):
            return RouteResolution(envelope, origin, self._context, avoid).decide()
        hop = hops[position]
        plan = self._by_domain.get(hop.domain)
        if plan is not None:
            return plan.apply(envelope)
        return self._decide_by_hop(hop, envelope, origin)

    @property
    def size(self) -> int:
        """How much is remembered, as counted for the limit."""
        return self._plans_max - self._capacity

    def _decide_by_hop(
        self, hop: CellAddress, envelope: Envelope, origin: MessageOrigin
    ) -> RoutingDecision:
        route_key = (hop.cell, hop.domain, origin.allow_local, origin.allow_remote)
        key: _Key = route_key
        cached = self._plans.get(key)
        if cached is None or (
            cached.depends_on_domains
            and _has_visited_any(cached.depends_on_domains, envelope, origin)
        ):
            key = (route_key, _visited(envelope, origin))
            cached = self._plans.get(key)
        plan = cached.pick(envelope.id) if isinstance(cached, BalancedPlan) else cached
        if plan is not None:
            return plan.apply(envelope)
        return self._resolve(route_key, cached, envelope, origin)

    def _resolve(
        self,
        route_key: _RouteKey,
        cached: RoutingPlan | BalancedPlan | None,
        envelope: Envelope,
        origin: MessageOrigin,
    ) -> RoutingDecision:
        resolution = RouteResolution(envelope, origin, self._context)
        decision = resolution.decide()
        if decision.failure is not None or resolution.was_rewritten:
            return decision
        plan = make_plan(decision, frozenset(resolution.depends_on_domains), self._context.address)
        if self._applies_to_domain(route_key[1], resolution):
            self._reserve(1)
            self._by_domain[route_key[1]] = plan
        else:
            visited = _visited(envelope, origin)
            # Most messages do not come from where a route leads to.
            key = route_key if plan.depends_on_domains.isdisjoint(visited) else (route_key, visited)
            self._store(key, self._record_candidates(cached, resolution, plan))
        return decision

    def _applies_to_domain(self, domain: str, resolution: RouteResolution) -> bool:
        """Whether whatever goes to cells of the domain goes the same way."""
        is_by_domain = (
            resolution.selected_route is not None
            and resolution.selected_route.type is RouteType.DOMAIN
        )
        return (
            is_by_domain
            and not resolution.depends_on_domains
            and not self._context.table.has_exacts(domain)
        )

    def _record_candidates(
        self,
        cached: RoutingPlan | BalancedPlan | None,
        resolution: RouteResolution,
        plan: RoutingPlan,
    ) -> RoutingPlan | BalancedPlan:
        """What is known now of where messages go that are alike but for their ids."""
        if not resolution.candidates:
            return plan
        balanced = (
            cached if isinstance(cached, BalancedPlan) else BalancedPlan(resolution, self._context)
        )
        balanced.record(resolution, plan)
        return balanced if balanced.has_open_targets else plan

    # What is remembered.

    def _store(self, key: _Key, cached: RoutingPlan | BalancedPlan) -> None:
        if self._plans.get(key) is not cached:
            self._reserve(cached.size)
            self._plans[key] = cached

    def _reserve(self, size: int) -> None:
        if self._capacity < size:
            self._clear()
        self._capacity -= size

    def _clear(self) -> None:
        self._plans.clear()
        self._by_domain.clear()
        self._capacity = self._plans_max


def _visited(envelope: Envelope, origin: MessageOrigin) -> frozenset[str]:
    """The domains that had the message before."""
    visited = envelope.source.trailing_domains()
    return visited if origin.peer is None else visited | {origin.peer}


def _has_visited_any(domains: frozenset[str], envelope: Envelope, origin: MessageOrigin) -> bool:
    """Whether one of the domains had the message before: the same question, asked quickly."""
    if origin.peer in domains:
        return True
    for hop in reversed(envelope.source.hops):
        if hop.cell != ANY:
            return False
        if hop.domain in domains:
            return True
    return False
