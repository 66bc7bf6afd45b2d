"""Routing decisions: deliveries, forwards and failure of a message in one domain, and why."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from postroad.cells.addresses import CellAddress, DomainInfo, Role
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.failure import DeliveryFailure
from postroad.cells.routing.route import Route
from postroad.cells.routing.route_table import RouteTable


class RoutingContext(NamedTuple):
    """What a routing decision depends on in a domain."""

    domain: DomainInfo
    address: CellAddress
    """The address of the domain."""
    table: RouteTable
    cells: AbstractSet[str]
    """Names of its cells, gateways included."""
    draining: AbstractSet[str]
    """Names of draining cells: only `cell@domain` reaches them."""

    def is_same_zone(self, route: Route) -> bool:
        """Return whether the route leads to the zone of this domain."""
        return self.domain.zone is not None and route.zone == self.domain.zone


class MessageOrigin(msgspec.Struct, frozen=True):
    """Where a message came from, and which routes a logical name may therefore follow."""

    peer: str | None = None
    """The domain whose tunnel it came from; None if a local cell sends it."""
    allow_local: bool = True
    """Whether it may be delivered to a local cell of that name."""
    allow_remote: bool = True
    """Whether it may leave this domain; a full address always may."""
    allow_fan_out: bool = True
    """Whether subscribers of its topic get copies; False for a reroute, as they have theirs."""

    @classmethod
    def from_peer(cls, peer: str, role: Role) -> MessageOrigin:
        """Return the origin of messages from a peer. A core has forwarded its own already."""
        return cls(peer=peer, allow_remote=role is not Role.CORE)


LOCAL_ORIGIN = MessageOrigin()
"""Sent by a local cell."""
REMOTE_ONLY_ORIGIN = MessageOrigin(allow_local=False)
"""Sent by a local cell to cells of the same name in other domains."""


class LocalDelivery(msgspec.Struct, frozen=True):
    """Delivery of a message to a local cell."""

    cell: str
    envelope: Envelope
    """The message with its hop consumed. The cell may forward it if further hops remain."""
    route_name: str | None = None
    """The queue or topic by which it was routed to the cell, if any."""


class Forward(msgspec.Struct, frozen=True):
    """Forward of a message to a gateway, which is a tunnel of this domain."""

    gateway: str
    envelope: Envelope
    """The message as it leaves: this domain is the last hop of its source path."""
    selected_target: str | None = None
    """Selected target of a queue or default route, to be avoided if the gateway fails."""


class RoutingDecision(msgspec.Struct, frozen=True):
    """Deliveries and forwards of a message, or its failure, and the steps of the decision."""

    deliveries: tuple[LocalDelivery, ...] = ()
    forwards: tuple[Forward, ...] = ()
    failure: DeliveryFailure | None = None
    """Why the message, or the part of it that is no copy of a topic, cannot be routed."""
    should_reply: bool = False
    """Whether to send the failure to the sender."""
    steps_log: tuple[tuple[object, ...], ...] = ()
    """Template and arguments of each step; `steps` formats them."""

    @property
    def steps(self) -> list[str]:
        """The formatted steps, as `route find` prints them."""
        return [str(form).format(*arguments) for form, *arguments in self.steps_log]

    def describe(self) -> str:
        """Return all steps and the outcome, a line each."""
        outcome = []
        for delivery in self.deliveries:
            suffix = "" if delivery.route_name is None else f" for {delivery.route_name}"
            outcome.append(f"deliver to {delivery.cell}{suffix}")
        for forward in self.forwards:
            target = forward.selected_target
            suffix = "" if target is None else f" towards {target}"
            outcome.append(f"forward through {forward.gateway}{suffix}")
        if self.failure is not None:
            outcome.append(f"fail: {self.failure.text}")
        return "\n".join([*self.steps, *(f"=> {line}" for line in outcome or ["nothing to do"])])
