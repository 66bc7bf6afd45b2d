"""Plans: what was decided for one message, to be done with all that are alike.

A plan has `asked`, the domains of which it mattered whether they had the message before, and
`size`, what it counts for among all that is remembered.
"""

from __future__ import annotations

from typing import TypeAlias

from .address import CellAddress
from .choice import NUMBER_MASK, candidate_weight, message_weight
from .decision import Forward, LocalDelivery, RoutingDecision
from .envelope import Envelope
from .routing import RouteResolution
from .surroundings import RoutingContext


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
