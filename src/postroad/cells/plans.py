"""Plans: what was decided for one message, to be done with all that are alike.

A plan has `asked`, the domains of which it mattered whether they had the message before, and
`size`, what it counts for among all that is remembered.
"""

from __future__ import annotations

from typing import TypeAlias

from .address import CellAddress
from .choice import NUMBER_MASK, number_of_candidate, number_of_message
from .decision import Decision, Delivery, Forward
from .envelope import Envelope
from .routing import Routing
from .surroundings import Surroundings


class ToGateway:
    """To hand all messages that are alike to one gateway."""

    __slots__ = ("_choice", "_gateway", "_sender", "asked")
    size = 1

    def __init__(self, forward: Forward, sender: CellAddress, asked: frozenset[str]) -> None:
        self._gateway = forward.gateway
        self._choice = forward.choice
        self._sender = sender
        self.asked = asked

    def carry_out(self, envelope: Envelope) -> Decision:
        """The decision for one message."""
        leaving = envelope.sent_by(self._sender)
        return Decision((), (Forward(self._gateway, leaving, self._choice),))


class ToCell:
    """To deliver them to one cell."""

    __slots__ = ("_address", "_cell", "_name", "asked")
    size = 1

    def __init__(self, delivery: Delivery, address: CellAddress, asked: frozenset[str]) -> None:
        self._cell = delivery.cell
        self._name = delivery.name
        self._address = address
        self.asked = asked

    def carry_out(self, envelope: Envelope) -> Decision:
        """The decision for one message."""
        arrived = envelope.heading(envelope.destination.arrived(self._address))
        return Decision((Delivery(self._cell, arrived, self._name),))


class ToMany:
    """To do any number of both: the copies of a topic."""

    __slots__ = ("_parts", "asked", "size")

    def __init__(self, parts: list[ToGateway | ToCell], asked: frozenset[str]) -> None:
        self.size = len(parts) + 1
        self._parts = parts
        self.asked = asked

    def carry_out(self, envelope: Envelope) -> Decision:
        """The decision for one message."""
        decisions = [part.carry_out(envelope) for part in self._parts]
        return Decision(
            tuple([it for decision in decisions for it in decision.deliveries]),
            tuple([it for decision in decisions for it in decision.forwards]),
        )


Plan: TypeAlias = ToGateway | ToCell | ToMany


def make_plan(decision: Decision, asked: frozenset[str], domain: CellAddress) -> Plan:
    """A plan of what was decided, by the domain of this address, for one message."""
    parts: list[ToGateway | ToCell] = [
        ToCell(it, CellAddress(it.cell, domain.domain), asked) for it in decision.deliveries
    ]
    parts += [ToGateway(it, domain, asked) for it in decision.forwards]
    return parts[0] if len(parts) == 1 else ToMany(parts, asked)


class Choice:
    """The routes of a queue that messages are spread over, and a plan for each.

    Plans come one by one, each from the first message that goes by that route. What those
    messages passed over is passed over by all.
    """

    __slots__ = ("_candidates", "_left", "_plans", "asked", "size")

    def __init__(self, routing: Routing, around: Surroundings) -> None:
        self.asked = frozenset(routing.asked)
        self.size = len(routing.choices)
        # The routes that were not passed over so far, and whether they are in the own zone.
        self._left = {it.target_name: around.is_near(it) for it in routing.choices}
        self._plans: dict[str, Plan] = {}
        self._candidates: list[tuple[int, Plan | None]] = []

    @property
    def has_any(self) -> bool:
        """Whether any of the routes leads anywhere, as far as is known."""
        return bool(self._left)

    def pick(self, id: bytes) -> Plan | None:
        """The plan for a message; None if its best route was not tried so far."""
        message = number_of_message(id)
        best, winner = -1, None
        for number, plan in self._candidates:
            score = message * number & NUMBER_MASK
            if score > best:
                best, winner = score, plan
        return winner

    def learn(self, routing: Routing, plan: Plan) -> None:
        """Keep which route a message went by, and which better ones lead nowhere."""
        for route in routing.choices:
            if route is routing.taken:
                self._plans[route.target_name] = plan
                break
            self._left.pop(route.target_name, None)
        near = [name for name, is_near in self._left.items() if is_near]
        # Of equal scores that of the higher name counts, which comes first.
        names = sorted(near or self._left, reverse=True)
        self._candidates = [(number_of_candidate(it), self._plans.get(it)) for it in names]
