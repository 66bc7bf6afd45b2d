"""Where a message goes next: one pure function.

The order is this. Hops that are this domain's own address are taken. A cell of this domain gets
what is addressed to it. A logical name goes to the cell that has it; else every topic route of
the name gets a copy, and then the first of these that leads anywhere gets the message: exact
routes and aliases of the address, queue routes of the name or domain routes of the domain,
default routes. An alias or a queue's consumer takes the place of the hop.

It is the order of the system this follows, with these differences:

- Among default routes, and among the routes of a queue, the order is a ranking: by a hash of the
  destination, so that order is kept, and by a hash of the message, so that load is spread. A route
  that leads nowhere at the moment, or that the caller asks to avoid, is passed over.
- A domain that had the same hop before is passed over, too. In a fan-out that is no failure,
  where the original reports one for each publication by a domain that has subscribers.
- A cell gets one copy, and a gateway one for each hop, however many routes lead there.
- A topic's copies go to domains through exact and domain routes alone. By a default route they
  would meet the message itself again.
- Whether a message may leave is decided by where it came from, until an alias renames it.
- A message whose time is over is not carried on; its sender is told.
- A cell that is draining is reached by its full address alone, which an alias may write.

What stays: a queue, an exact route or an alias of the same name as a topic keeps the message from
the default route, and so from the subscribers of other domains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from postroad.cells.addresses import SYSTEM, CellAddress, CellPath, DomainInfo
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.failure import DeliveryFailure
from postroad.cells.errors import (
    HopLimitExceededError,
    MessageExpiredError,
    NoRouteError,
    RoutingError,
)
from postroad.cells.routing.decision import (
    LOCAL_ORIGIN,
    Forward,
    LocalDelivery,
    MessageOrigin,
    RoutingContext,
    RoutingDecision,
)
from postroad.cells.routing.rendezvous import rank_for_message, rendezvous_rank_by
from postroad.cells.routing.route import Route, RouteType
from postroad.cells.routing.route_table import RouteTable

STEPS_MAX = 16
"""Names a hop may have one after the other in one domain; more are aliases in a circle."""
SOURCE_HOPS_MAX = 30
"""Length of the source path of what may still leave a domain."""

_NO_NAMES: frozenset[str] = frozenset()


def route_message(
    envelope: Envelope,
    origin: MessageOrigin = LOCAL_ORIGIN,
    *,
    table: RouteTable,
    cells: Collection[str],
    domain: DomainInfo,
    draining: Collection[str] = (),
    avoid: frozenset[str] = _NO_NAMES,
) -> RoutingDecision:
    """Decide what becomes of a message.

    Args:
        envelope: the message.
        origin: where it came from.
        table: all routes.
        cells: the cells of this domain that can be reached, gateways among them.
        domain: this domain.
        hidden: those of the cells that are draining: who writes `cell@domain` reaches them, a
            bare name or a route does not.
        avoid: what queue and default routes shall not lead to: the choices that were tried.
    """
    return RouteResolution(
        envelope, origin, RoutingContext(domain, table, cells, draining), avoid
    ).decide()


class RouteResolution:
    """One message on its way through one domain.

    What comes besides the decision is for whoever remembers decisions: all that they depended on.

    Attributes:
        taken: the route that the message itself went by, if it was one.
        choices: the routes of a queue, best first, if there were several: others come first for
            other messages.
        asked: the domains of which it mattered whether they had the message before.
    """

    def __init__(
        self,
        envelope: Envelope,
        origin: MessageOrigin,
        context: RoutingContext,
        avoid: frozenset[str] = _NO_NAMES,
    ) -> None:
        self._envelope = envelope
        self._context = context
        self._table = context.table
        self._domain = context.domain
        self._avoid = avoid
        self._is_remote = origin.peer is not None
        self._allow_local = origin.allow_local
        self._allow_remote = origin.allow_remote
        self._allow_fan_out = origin.allow_fan_out
        self._path = envelope.destination
        # Domains that had this very hop before us; none once it is another one.
        self._visited = envelope.source.trailing_domains()
        if origin.peer is not None:
            self._visited |= {origin.peer}
        self._was_topic = False
        self._deliveries: dict[str, LocalDelivery] = {}
        self._forwards: dict[tuple[str, CellAddress], Forward] = {}
        self._failure: DeliveryFailure | None = None
        self._steps_log: list[tuple[object, ...]] = []
        self.selected_route: Route | None = None
        self.candidates: list[Route] = []
        self.depends_on_domains: set[str] = set()

    @property
    def was_rewritten(self) -> bool:
        """Whether own hops were taken, or an alias took the place of the hop."""
        return self._path is not self._envelope.destination

    def decide(self) -> RoutingDecision:
        if self._envelope.is_expired:
            self._fail(
                MessageExpiredError, f"the time of the message was over at {self._domain.name}"
            )
        else:
            self._resolve_path()
        failure = self._failure
        wants_error = not (
            self._envelope.suppress_errors and failure and failure.code == NoRouteError.code
        )
        return RoutingDecision(
            deliveries=tuple(self._deliveries.values()),
            forwards=tuple(self._forwards.values()),
            failure=failure,
            should_reply=failure is not None and wants_error and self._envelope.can_reply,
            steps_log=tuple(self._steps_log),
        )

    def _resolve_path(self) -> None:
        """Resolve the current hop, and whatever takes its place, to the end."""
        for _ in range(STEPS_MAX):
            if not self._skip_local_hops():
                return
            if self._resolve(self._path.current):
                return
        self._fail(
            HopLimitExceededError,
            f"{STEPS_MAX} aliases, one after the other, at {self._domain.name}",
        )

    def _skip_local_hops(self) -> bool:
        while not self._path.is_complete:
            if self._path.current != self._context.address:
                return True
            self._log_step("{} is this domain: on to the next hop", self._path.current)
            self._path = self._path.advanced()
            self._visited = _NO_NAMES
        self._fail(NoRouteError, f"the path ends at domain {self._domain.name}, not at a cell")
        return False

    def _resolve(self, hop: CellAddress) -> bool:
        """Settle what becomes of a hop; False if another one took its place."""
        if hop.domain == self._domain.name:
            self._deliver_to_address(hop)
            return True
        if hop.is_local:
            if self._allow_local and self._context.is_routable(hop.cell):
                self._log_step("{} is a cell of this domain", hop.cell)
                self._deliver(hop.cell, None)
                return True
            self._fan_out(hop)
        return self._follow_routes(hop)

    def _deliver_to_address(self, hop: CellAddress) -> None:
        if hop.cell in self._context.cells:
            self._log_step("{} is in this domain", hop)
            self._deliver(hop.cell, None)
        else:
            self._fail(NoRouteError, f"no cell {hop.cell!r} in domain {hop.domain}")

    # Topics.

    def _fan_out(self, hop: CellAddress) -> None:
        for route in self._table.topics(hop.cell):
            self._was_topic = True
            if not self._allow_fan_out:
                self._log_step("{}: has its copy already", route)
            elif self._context.is_local_target(route.target):
                self._copy_to_cell(route)
            elif not self._allow_remote:
                self._log_step("{}: not followed, the message came from a core", route)
            else:
                self._copy_to_domain(route)

    def _copy_to_cell(self, route: Route) -> None:
        if self._is_target_routable(route):
            self._log_step("{}: a copy", route)
            self._deliver(route.target.cell, route.cell)

    def _copy_to_domain(self, route: Route) -> None:
        if self._has_visited(route.target):
            self._log_step("{}: the message came from there", route)
        elif (gateway := self._context.resolve_gateway(route.target)) is None:
            self._fail(NoRouteError, f"{route}: no way there from {self._domain.name}")
        else:
            self._log_step("{}: a copy through {}", route, gateway)
            self._forward(gateway, None)

    # Everything else.

    def _follow_routes(self, hop: CellAddress) -> bool:
        """Follow the first route that leads anywhere; False if it gave the hop another name."""
        for route in self._routes_for(hop):
            if route.type is RouteType.ALIAS:
                self._log_step("{}: another name", route)
                self._apply_alias(route.target)
                return False
            if self._has_visited(route.target):
                self._log_step("{}: the message came from there", route)
            elif self._try_route(route):
                self.selected_route = route
                return True
        if self._was_topic:
            self._log_step("no other route for {}", hop)
        else:
            self._fail(NoRouteError, f"no route for {hop} at {self._domain.name}")
        return True

    def _try_route(self, route: Route) -> bool:
        if route.type is RouteType.QUEUE and self._context.is_local_target(route.target):
            return self._deliver_to_consumer(route)
        gateway = self._context.resolve_gateway(route.target)
        if gateway is None:
            self._log_step("{}: no way there", route)
            return False
        self._log_step("{}: through {}", route, gateway)
        is_selected = route.type in (RouteType.QUEUE, RouteType.DEFAULT)
        self._forward(gateway, route.target_name if is_selected else None)
        return True

    def _deliver_to_consumer(self, route: Route) -> bool:
        if not self._is_target_routable(route):
            return False
        self._log_step("{}: the consumer", route)
        self._deliver(route.target.cell, route.cell)
        return True

    def _routes_for(self, hop: CellAddress) -> Iterator[Route]:
        yield from self._table.exacts(hop)
        if hop.is_local:
            yield from self._queue_routes(hop.cell)
        else:
            yield from self._table.domains(hop.domain)
        if self._allow_remote or not hop.is_local:
            yield from self._default_routes(hop)

    def _queue_routes(self, name: str) -> list[Route]:
        routes: Iterable[Route] = self._allowed(self._table.queues(name))
        if not self._allow_remote:
            routes = [route for route in routes if self._context.is_local_target(route.target)]
        ranked = rank_for_message(
            self._envelope.id, routes, name=_target_name, is_preferred=self._context.is_same_zone
        )
        if len(ranked) > 1:
            self.candidates = ranked
            self.depends_on_domains.update(
                route.target.domain for route in ranked if route.target.is_domain
            )
        return ranked

    def _default_routes(self, hop: CellAddress) -> list[Route]:
        # Sticky: what is sent to one name goes one way and so stays in order.
        return rendezvous_rank_by(
            str(hop).encode(),
            self._allowed(self._table.defaults()),
            name=_target_name,
            is_preferred=self._context.is_same_zone,
        )

    def _allowed(self, routes: Iterable[Route]) -> list[Route]:
        return [route for route in routes if route.target_name not in self._avoid]

    # What targets are.

    def _is_target_routable(self, route: Route) -> bool:
        """Whether the cell a queue or topic route leads to takes what comes by it."""
        cell = route.target.cell
        if self._context.is_routable(cell):
            return True
        cell_state = "draining" if cell in self._context.cells else "gone"
        self._log_step("{}: that cell is {}", route, cell_state)
        return False

    def _has_visited(self, target: CellAddress) -> bool:
        if not target.is_domain:
            return False
        self.depends_on_domains.add(target.domain)
        return target.domain in self._visited

    # What is decided.

    def _apply_alias(self, address: CellAddress) -> None:
        self._path = self._path.with_current(address)
        self._visited = _NO_NAMES
        self._allow_local = self._allow_remote = True

    def _deliver(self, cell: str, name: str | None) -> None:
        if cell in self._deliveries:
            self._log_step("{} has its copy already", cell)
            return
        path = self._path.delivered_to(CellAddress(cell, self._domain.name))
        self._deliveries[cell] = LocalDelivery(cell, self._envelope.with_destination(path), name)

    def _forward(self, gateway: str, selected_target: str | None) -> None:
        if len(self._envelope.source) > SOURCE_HOPS_MAX:
            self._fail(
                HopLimitExceededError, f"{len(self._envelope.source)} hops at {self._domain.name}"
            )
            return
        if (gateway, self._path.current) in self._forwards:
            self._log_step("{} has its copy already", gateway)
            return
        outgoing = self._outgoing_envelope().with_destination_and_hop(
            self._path, self._context.address
        )
        self._forwards[gateway, self._path.current] = Forward(gateway, outgoing, selected_target)

    def _outgoing_envelope(self) -> Envelope:
        """The message as this domain answers for it.

        One from elsewhere that gets another destination here is sent on by the domain itself, as by
        any cell on its path. Others could not believe that it came from its sender by this way.
        """
        if self.was_rewritten and self._is_remote:
            return self._envelope.with_source_hop(self._domain.cell(SYSTEM))
        return self._envelope

    def _fail(self, error: type[RoutingError], text: str) -> None:
        self._log_step("{}", text)
        hop = _hop_of(self._path)
        self._failure = DeliveryFailure.of(error, text, hop=hop, at=self._domain.name)

    def _log_step(self, template: str, *arguments: object) -> None:
        self._steps_log.append((template, *arguments))


def _target_name(route: Route) -> str:
    return route.target_name


def _hop_of(path: CellPath) -> CellAddress | None:
    return None if path.is_complete else path.current
