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

    __slots__ = ("_choice", "_gateway", "_sender", "depends_on_domains")
    size = 1

    def __init__(self, forward: Forward, sender: CellAddress, asked: frozenset[str]) -> None:
        self._gateway = forward.gateway
        self._choice = forward.selected_target
        self._sender = sender
        self.depends_on_domains = asked

    def apply(self, envelope: Envelope) -> RoutingDecision:
        """The decision for one message."""
        leaving = envelope.with_source_hop(self._sender)
        return RoutingDecision((), (Forward(self._gateway, leaving, self._choice),))


class DeliverPlan:
    """To deliver them to one cell."""

    __slots__ = ("_address", "_cell", "_name", "depends_on_domains")
    size = 1

    def __init__(
        self, delivery: LocalDelivery, address: CellAddress, asked: frozenset[str]
    ) -> None:
        self._cell = delivery.cell
        self._name = delivery.route_name
        self._address = address
        self.depends_on_domains = asked

    def apply(self, envelope: Envelope) -> RoutingDecision:
        """The decision for one message."""
        arrived = envelope.with_destination(envelope.destination.delivered_to(self._address))
        return RoutingDecision((LocalDelivery(self._cell, arrived, self._name),))


class FanOutPlan:
    """To do any number of both: the copies of a topic."""

    __slots__ = ("_parts", "depends_on_domains", "size")

    def __init__(self, parts: list[ForwardPlan | DeliverPlan], asked: frozenset[str]) -> None:
        self.size = len(parts) + 1
        self._parts = parts
        self.depends_on_domains = asked

    def apply(self, envelope: Envelope) -> RoutingDecision:
        """The decision for one message."""
        decisions = [part.apply(envelope) for part in self._parts]
        return RoutingDecision(
            tuple([it for decision in decisions for it in decision.deliveries]),
            tuple([it for decision in decisions for it in decision.forwards]),
        )


RoutingPlan: TypeAlias = ForwardPlan | DeliverPlan | FanOutPlan


def make_plan(decision: RoutingDecision, asked: frozenset[str], domain: CellAddress) -> RoutingPlan:
    """A plan of what was decided, by the domain of this address, for one message."""
    parts: list[ForwardPlan | DeliverPlan] = [
        DeliverPlan(it, CellAddress(it.cell, domain.domain), asked) for it in decision.deliveries
    ]
    parts += [ForwardPlan(it, domain, asked) for it in decision.forwards]
    return parts[0] if len(parts) == 1 else FanOutPlan(parts, asked)


class BalancedPlan:
    """The routes of a queue that messages are spread over, and a plan for each.

    Plans come one by one, each from the first message that goes by that route. What those
    messages passed over is passed over by all.
    """

    __slots__ = ("_candidates", "_left", "_plans", "depends_on_domains", "size")

    def __init__(self, routing: RouteResolution, around: RoutingContext) -> None:
        self.depends_on_domains = frozenset(routing.depends_on_domains)
        self.size = len(routing.candidates)
        # The routes that were not passed over so far, and whether they are in the own zone.
        self._left = {it.target_name: around.is_same_zone(it) for it in routing.candidates}
        self._plans: dict[str, RoutingPlan] = {}
        self._candidates: list[tuple[int, RoutingPlan | None]] = []

    @property
    def has_any(self) -> bool:
        """Whether any of the routes leads anywhere, as far as is known."""
        return bool(self._left)

    def pick(self, id: bytes) -> RoutingPlan | None:
        """The plan for a message; None if its best route was not tried so far."""
        message = message_weight(id)
        best, winner = -1, None
        for number, plan in self._candidates:
            score = message * number & NUMBER_MASK
            if score > best:
                best, winner = score, plan
        return winner

    def record(self, routing: RouteResolution, plan: RoutingPlan) -> None:
        """Keep which route a message went by, and which better ones lead nowhere."""
        for route in routing.candidates:
            if route is routing.taken:
                self._plans[route.target_name] = plan
                break
            self._left.pop(route.target_name, None)
        near = [name for name, is_near in self._left.items() if is_near]
        # Of equal scores that of the higher name counts, which comes first.
        names = sorted(near or self._left, reverse=True)
        self._candidates = [(candidate_weight(it), self._plans.get(it)) for it in names]


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
