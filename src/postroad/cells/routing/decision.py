"""What is to be done with a message in one domain, and why."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from postroad.cells.addresses import LOCAL, CellAddress, DomainInfo, Role
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.failure import DeliveryFailure
from postroad.cells.routing.route import Route, RouteType
from postroad.cells.routing.route_table import RouteTable


class RoutingContext:
    """A domain at one time.

    Args:
        domain: the domain.
        table: all its routes.
        cells: its cells that can be reached, gateways among them.
        hidden: those of them that are draining: only who writes `cell@domain` reaches them.
    """

    def __init__(
        self,
        domain: DomainInfo,
        table: RouteTable,
        cells: Collection[str],
        draining: Collection[str] = (),
    ) -> None:
        self.domain = domain
        self.address = domain.address
        self.table = table
        self.cells = cells
        self.draining = draining

    def is_routable(self, cell: str) -> bool:
        """Whether a bare name or a route leads to the cell."""
        return cell in self.cells and cell not in self.draining

    def is_local_target(self, target: CellAddress) -> bool:
        """Whether it is the address of a cell of this domain, be it there or not."""
        return target.domain in (self.domain.name, LOCAL) and not target.is_domain

    def is_same_zone(self, route: Route) -> bool:
        """Whether the route leads to the zone of this domain."""
        return self.domain.zone is not None and route.zone == self.domain.zone

    def resolve_gateway(self, target: CellAddress) -> str | None:
        """The cell of this domain that brings messages to a target, if there is one."""
        seen: set[CellAddress] = set()
        pending = [target]
        while pending:
            address = pending.pop()
            if self.is_local_target(address):
                if self.is_routable(address.cell):
                    return address.cell
            elif address not in seen:
                seen.add(address)
                pending += reversed(self._next_targets(address))
        return None

    def _next_targets(self, address: CellAddress) -> list[CellAddress]:
        routes = [*self.table.exacts(address), *self.table.domains(address.domain)]
        return [route.target for route in routes if route.type is not RouteType.ALIAS]


class MessageOrigin(msgspec.Struct, frozen=True):
    """Where a message came from, and so what may be done with a logical name in it."""

    peer: str | None = None
    """The domain whose tunnel brought it; None if a cell of this domain sends it."""
    allow_local: bool = True
    """Whether a cell of this domain that has the name itself may get it."""
    allow_remote: bool = True
    """Whether it may go to another domain; whatever has its domain written on it always may."""
    allow_fan_out: bool = True
    """Whether subscribers of its topic get copies; not if they have theirs and just the message
    itself is sent another way."""

    @classmethod
    def from_peer(cls, peer: str, role: Role) -> MessageOrigin:
        """Out of a tunnel. What a core sends was already offered to all other domains."""
        return cls(peer=peer, allow_remote=role is not Role.CORE)


LOCAL_ORIGIN = MessageOrigin()
"""A cell of this domain sends it."""
REMOTE_ONLY_ORIGIN = MessageOrigin(allow_local=False)
"""A cell of this domain sends it to its namesakes elsewhere."""


class LocalDelivery(msgspec.Struct, frozen=True):
    """A message for a cell of this domain."""

    cell: str
    envelope: Envelope
    """As the cell gets it: the hop is taken. If others remain the cell may send it on."""
    route_name: str | None = None
    """The queue or topic it was sent to, if that is why this cell gets it."""


class Forward(msgspec.Struct, frozen=True):
    """A message for a gateway: a cell of this domain that brings it elsewhere."""

    gateway: str
    envelope: Envelope
    """As it leaves: this domain is at the end of its source."""
    selected_target: str | None = None
    """What was chosen among queue or default routes; to be avoided if the gateway fails."""


class RoutingDecision(msgspec.Struct, frozen=True):
    """All that is to be done with a message, and the steps that led there."""

    deliveries: tuple[LocalDelivery, ...] = ()
    forwards: tuple[Forward, ...] = ()
    failure: DeliveryFailure | None = None
    """Why the message is lost, as a whole or the one of its copies that was no topic's."""
    should_reply: bool = False
    """Whether the sender is to be told of the failure."""
    steps_log: tuple[tuple[object, ...], ...] = ()
    """A format and its arguments for each step; `steps` puts them together."""

    @property
    def steps(self) -> list[str]:
        """The steps in words: what `route find` prints."""
        return [str(form).format(*arguments) for form, *arguments in self.steps_log]

    def describe(self) -> str:
        """All steps and the outcome, a line each."""
        outcome = [
            f"deliver to {delivery.cell}" + _format_route_name(delivery)
            for delivery in self.deliveries
        ]
        outcome += [
            f"forward through {forward.gateway}" + _format_target(forward)
            for forward in self.forwards
        ]
        if self.failure is not None:
            outcome.append(f"fail: {self.failure.text}")
        return "\n".join([*self.steps, *(f"=> {line}" for line in outcome or ["nothing to do"])])


def _format_route_name(delivery: LocalDelivery) -> str:
    return f" for {delivery.route_name}" if delivery.route_name is not None else ""


def _format_target(forward: Forward) -> str:
    return f" towards {forward.selected_target}" if forward.selected_target is not None else ""
