"""Routing decisions that are remembered: what `route_message` decides, at the price of a lookup.

A decision depends on the hop of a message, on what its origin allows, for some routes on the
domains that had it before, and for a queue with several routes on its id. So what was decided for
one message is a plan for all others that are alike in this. Nothing is decided here: plans are
made of decisions, and whatever is unusual is routed in full each time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from .address import ANY, CellAddress
from .decision import LOCAL_ORIGIN, MessageOrigin, RoutingDecision
from .domain import DomainInfo
from .envelope import Envelope, MessageKind
from .plans import BalancedPlan, RoutingPlan, make_plan
from .route import RouteType
from .routes import RouteTable
from .routing import SOURCE_HOPS_MAX, RouteResolution
from .surroundings import RoutingContext

REMEMBERED_MAX = 8_192
"""There must be a limit, since it is peers who choose the names."""

_NOBODY: frozenset[str] = frozenset()

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

    def __init__(self, domain: DomainInfo, *, remembered_max: int = REMEMBERED_MAX) -> None:
        self._domain = domain
        self._remembered_max = remembered_max
        # By hop, and by domain where all its cells are reached the same way.
        self._plans: dict[_Key, RoutingPlan | BalancedPlan] = {}
        self._by_domain: dict[str, RoutingPlan] = {}
        self._room = remembered_max
        self.update(RouteTable(), ())

    def update(
        self, table: RouteTable, cells: Collection[str], hidden: Collection[str] = ()
    ) -> None:
        """Decide by these from now on, see `route_message`; all plans are forgotten."""
        self._around = RoutingContext(self._domain, table, frozenset(cells), frozenset(hidden))
        self._forget()

    def decide(
        self,
        envelope: Envelope,
        origin: MessageOrigin = LOCAL_ORIGIN,
        avoid: frozenset[str] = _NOBODY,
    ) -> RoutingDecision:
        """Decide what becomes of a message."""
        path = envelope.destination
        hops = path.hops
        place = path.position
        if (
            avoid
            or not origin.allow_fan_out
            or place == len(hops)
            or len(envelope.source.hops) > SOURCE_HOPS_MAX
            or (envelope.ttl_ms == 0 and envelope.kind is MessageKind.MESSAGE)
        ):
            return RouteResolution(envelope, origin, self._around, avoid).decide()
        hop = hops[place]
        plan = self._by_domain.get(hop.domain)
        if plan is not None:
            return plan.apply(envelope)
        return self._decide_by_hop(hop, envelope, origin)

    @property
    def size(self) -> int:
        """How much is remembered, as counted for the limit."""
        return self._remembered_max - self._room

    def _decide_by_hop(
        self, hop: CellAddress, envelope: Envelope, origin: MessageOrigin
    ) -> RoutingDecision:
        alike = (hop.cell, hop.domain, origin.allow_local, origin.allow_remote)
        key: _Key = alike
        known = self._plans.get(key)
        if known is None or (
            known.depends_on_domains and _was_at_any(known.depends_on_domains, envelope, origin)
        ):
            key = (alike, _visited(envelope, origin))
            known = self._plans.get(key)
        plan = known.pick(envelope.id) if isinstance(known, BalancedPlan) else known
        if plan is not None:
            return plan.apply(envelope)
        return self._resolve(alike, known, envelope, origin)

    def _resolve(
        self,
        alike: _RouteKey,
        known: RoutingPlan | BalancedPlan | None,
        envelope: Envelope,
        origin: MessageOrigin,
    ) -> RoutingDecision:
        routing = RouteResolution(envelope, origin, self._around)
        decision = routing.decide()
        if decision.failure is not None or routing.was_rewritten:
            return decision
        plan = make_plan(decision, frozenset(routing.depends_on_domains), self._around.address)
        if self._applies_to_domain(alike[1], routing):
            self._make_room(1)
            self._by_domain[alike[1]] = plan
        else:
            visited = _visited(envelope, origin)
            # Most messages do not come from where a route leads to.
            key = alike if plan.depends_on_domains.isdisjoint(visited) else (alike, visited)
            self._remember(key, self._with_choices(known, routing, plan))
        return decision

    def _applies_to_domain(self, domain: str, routing: RouteResolution) -> bool:
        """Whether whatever goes to cells of the domain goes the same way."""
        is_by_domain = routing.taken is not None and routing.taken.type is RouteType.DOMAIN
        return (
            is_by_domain
            and not routing.depends_on_domains
            and not self._around.table.has_exacts(domain)
        )

    def _with_choices(
        self, known: RoutingPlan | BalancedPlan | None, routing: RouteResolution, plan: RoutingPlan
    ) -> RoutingPlan | BalancedPlan:
        """What is known now of where messages go that are alike but for their ids."""
        if not routing.candidates:
            return plan
        choice = known if isinstance(known, BalancedPlan) else BalancedPlan(routing, self._around)
        choice.record(routing, plan)
        return choice if choice.has_any else plan

    # What is remembered.

    def _remember(self, key: _Key, known: RoutingPlan | BalancedPlan) -> None:
        if self._plans.get(key) is not known:
            self._make_room(known.size)
            self._plans[key] = known

    def _make_room(self, size: int) -> None:
        if self._room < size:
            self._forget()
        self._room -= size

    def _forget(self) -> None:
        self._plans.clear()
        self._by_domain.clear()
        self._room = self._remembered_max


def _visited(envelope: Envelope, origin: MessageOrigin) -> frozenset[str]:
    """The domains that had the message before."""
    visited = envelope.source.trailing_domains()
    return visited if origin.peer is None else visited | {origin.peer}


def _was_at_any(domains: frozenset[str], envelope: Envelope, origin: MessageOrigin) -> bool:
    """Whether one of the domains had the message before: the same question, asked quickly."""
    if origin.peer in domains:
        return True
    for hop in reversed(envelope.source.hops):
        if hop.cell != ANY:
            return False
        if hop.domain in domains:
            return True
    return False
