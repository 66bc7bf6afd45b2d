"""Cache of routing decisions: the result of `route_message` at the cost of a lookup.

A decision depends on the hop of a message, on its origin, for some routes on the domains that it
visited, and for a queue with several routes on its id. So the decision for one message is a plan
for all messages that are equal in these. This module decides nothing: plans are made of decisions,
and unusual messages are routed by `RouteResolution` each time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, TypeAlias

import msgspec

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
from postroad.cells.routing.route_table import (
    CacheSection,
    Dependency,
    RouteCache,
    RouteTable,
    key_of_exacts,
)
from postroad.cells.routing.router import SOURCE_HOPS_MAX, RouteResolution


class ForwardPlan(msgspec.Struct, frozen=True):
    """Cached decision: forward through one gateway."""

    gateway: str
    selected_target: str | None
    sender: CellAddress
    depends_on_domains: frozenset[str]
    size: ClassVar[int] = 1

    def apply(self, envelope: Envelope) -> RoutingDecision:
        outgoing = envelope.with_source_hop(self.sender)
        return RoutingDecision((), (Forward(self.gateway, outgoing, self.selected_target),))


class DeliverPlan(msgspec.Struct, frozen=True):
    """Cached decision: deliver to one cell."""

    address: CellAddress
    route_name: str | None
    depends_on_domains: frozenset[str]
    size: ClassVar[int] = 1

    def apply(self, envelope: Envelope) -> RoutingDecision:
        delivered = envelope.with_destination(envelope.destination.delivered_to(self.address))
        return RoutingDecision((LocalDelivery(self.address.cell, delivered, self.route_name),))


class FanOutPlan:
    """Cached decision: several deliveries and forwards, the copies of a topic."""

    __slots__ = ("_parts", "depends_on_domains", "size")

    def __init__(
        self, parts: list[ForwardPlan | DeliverPlan], depends_on_domains: frozenset[str]
    ) -> None:
        self.size = len(parts) + 1
        self._parts = parts
        self.depends_on_domains = depends_on_domains

    def apply(self, envelope: Envelope) -> RoutingDecision:
        decisions = [part.apply(envelope) for part in self._parts]
        return RoutingDecision(
            tuple([delivery for decision in decisions for delivery in decision.deliveries]),
            tuple([forward for decision in decisions for forward in decision.forwards]),
        )


RoutingPlan: TypeAlias = ForwardPlan | DeliverPlan | FanOutPlan


def make_plan(
    decision: RoutingDecision, depends_on_domains: frozenset[str], domain: CellAddress
) -> RoutingPlan:
    parts: list[ForwardPlan | DeliverPlan] = [
        DeliverPlan(
            CellAddress(delivery.cell, domain.domain), delivery.route_name, depends_on_domains
        )
        for delivery in decision.deliveries
    ]
    parts += [
        ForwardPlan(forward.gateway, forward.selected_target, domain, depends_on_domains)
        for forward in decision.forwards
    ]
    return parts[0] if len(parts) == 1 else FanOutPlan(parts, depends_on_domains)


class BalancedPlan:
    """Routes of a queue that messages are balanced over, and a plan for each.

    Plans are recorded one by one, each with the first message that selects the route. Routes that
    were skipped for one message are skipped for all.
    """

    def __init__(self, resolution: RouteResolution, context: RoutingContext) -> None:
        self.depends_on_domains = frozenset(resolution.depends_on_domains)
        self.size = len(resolution.candidates)
        self.dependencies: frozenset[Dependency] = frozenset()
        # Targets of the routes not skipped so far, and whether they are in the local zone.
        self.open_targets = {
            route.target_name: context.is_same_zone(route) for route in resolution.candidates
        }
        self._plans: dict[str, RoutingPlan] = {}
        self._candidates: list[tuple[int, RoutingPlan | None]] = []

    def pick(self, id: bytes) -> RoutingPlan | None:
        """Return the plan for a message; None if its best route has no plan yet."""
        message = message_weight(id)
        best, winner = -1, None
        for number, plan in self._candidates:
            score = message * number & NUMBER_MASK
            if score > best:
                best, winner = score, plan
        return winner

    def record(self, resolution: RouteResolution, plan: RoutingPlan) -> None:
        """Record the plan of the selected route, and that better routes were skipped."""
        self.dependencies |= resolution.dependencies
        for route in resolution.candidates:
            if route is resolution.selected_route:
                self._plans[route.target_name] = plan
                break
            self.open_targets.pop(route.target_name, None)
        same_zone = [name for name, is_same_zone in self.open_targets.items() if is_same_zone]
        # Of equal scores the higher name wins, so it comes first.
        names = sorted(same_zone or self.open_targets, reverse=True)
        self._candidates = [(candidate_weight(name), self._plans.get(name)) for name in names]


PLANS_MAX = 8_192
"""Limit of the cached plans, because peers choose the names."""

_NO_NAMES: frozenset[str] = frozenset()

_RouteKey: TypeAlias = tuple[str, str, bool, bool]
"""Cell and domain of the hop, and what the origin allows."""
_Key: TypeAlias = str | _RouteKey | tuple[_RouteKey, frozenset[str]]
"""With the visited domains, for routes that depend on them; only the domain of the hop, if all of
its cells have the same route."""


class RoutingDecisionCache:
    """Memoized `route_message`; the steps of its decisions may be empty."""

    def __init__(self, domain: DomainInfo, *, plans_max: int = PLANS_MAX) -> None:
        self.cache = RouteCache()
        """For further results that depend on routes."""
        self._context = RoutingContext(domain, domain.address, RouteTable(), _NO_NAMES, _NO_NAMES)
        self._section: CacheSection[_Key, RoutingPlan | BalancedPlan] = CacheSection(
            self.cache, plans_max
        )
        self._plans = self._section.results

    def update(
        self, table: RouteTable, cells: Collection[str], draining: Collection[str] = ()
    ) -> None:
        """Set table and cells for further decisions, see `route_message`.

        Results that depend on what has changed are forgotten.
        """
        before = self._context
        self._context = before._replace(
            table=table, cells=frozenset(cells), draining=frozenset(draining)
        )
        if table is not before.table:
            self.cache.invalidate(table.keys_changed_since(before.table))
        self.cache.invalidate(before.cells ^ self._context.cells)
        self.cache.invalidate(before.draining ^ self._context.draining)

    def resolve(self, envelope: Envelope, origin: MessageOrigin = LOCAL_ORIGIN) -> RouteResolution:
        """Return a resolution of a message, which tells what its decision depends on."""
        return RouteResolution(envelope, origin, self._context)

    def decide(
        self,
        envelope: Envelope,
        origin: MessageOrigin = LOCAL_ORIGIN,
        avoid: frozenset[str] = _NO_NAMES,
    ) -> RoutingDecision:
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
        plan = self._plans.get(hop.domain)
        if plan is not None:
            # Plans of whole domains are never balanced.
            return plan.apply(envelope)  # type: ignore[union-attr]
        return self._decide_by_hop(hop, envelope, origin)

    @property
    def size(self) -> int:
        """Number of cached plans and candidates."""
        return self._section.size

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
        domain = route_key[1]
        route = resolution.selected_route
        if (
            route is not None
            and route.type is RouteType.DOMAIN
            and not resolution.depends_on_domains
            and not self._context.table.has_exacts(domain)
        ):
            # No cell of the domain has an exact route, so the plan holds for all of them.
            dependencies = resolution.dependencies - {(RouteType.EXACT, *route_key[:2])}
            self._section.put(domain, plan, {*dependencies, key_of_exacts(domain)})
        else:
            visited = _visited(envelope, origin)
            # Most messages have not visited the targets of the routes.
            key = route_key if plan.depends_on_domains.isdisjoint(visited) else (route_key, visited)
            if resolution.candidates:
                if not isinstance(cached, BalancedPlan):
                    cached = BalancedPlan(resolution, self._context)
                cached.record(resolution, plan)
                if cached.open_targets:
                    self._section.put(key, cached, cached.dependencies, cached.size)
                    return decision
            self._section.put(key, plan, resolution.dependencies, plan.size)
        return decision


def _visited(envelope: Envelope, origin: MessageOrigin) -> frozenset[str]:
    """Return the domains that the message visited with this hop."""
    visited = envelope.source.trailing_domains()
    return visited if origin.peer is None else visited | {origin.peer}


def _has_visited_any(domains: frozenset[str], envelope: Envelope, origin: MessageOrigin) -> bool:
    """Return whether the message visited one of the domains; faster than `_visited`."""
    if origin.peer in domains:
        return True
    for hop in reversed(envelope.source.hops):
        if hop.cell != ANY:
            return False
        if hop.domain in domains:
            return True
    return False
