"""The router: a pure function that decides where a message goes next.

The order is this. Hops with the address of this domain are consumed. A full address of this domain
is delivered to its cell. A logical name goes to the local cell of that name; otherwise every topic
route of the name gets a copy, and then the message follows the first usable route of: exact routes
and aliases of the address, queue routes of the name or domain routes of the domain, default routes.
An alias or the consumer of a queue replaces the hop.

It is the order of dCache, with these differences:

- Default routes are ranked by a hash of the destination, so that messages stay in order, and the
  routes of a queue by a hash of the message, so that load is balanced. A route without a gateway,
  or whose target the caller avoids, is skipped.
- A domain that the message visited with the same hop is skipped. In a fan-out that is no failure,
  where dCache reports one for each publication by a domain that has subscribers.
- A cell gets one copy, and a gateway one for each hop, however many routes lead there.
- Copies of a topic follow exact and domain routes only. A default route would lead them to the
  message itself again.
- Whether a message may leave this domain depends on its origin, until an alias replaces its hop.
- An expired message is not forwarded; its sender gets an error reply.
- A draining cell is reached by its full address only, which may come from an alias.

As in dCache, a queue, an exact route or an alias with the name of a topic keeps the message from
the default route, and so from the subscribers of other domains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from postroad.cells.addresses import ANY, LOCAL, SYSTEM, CellAddress, DomainInfo
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
from postroad.cells.routing.route_table import Dependency, RouteTable

STEPS_MAX = 16
"""Aliases that a hop may follow in one domain; more are aliases in a circle."""
SOURCE_HOPS_MAX = 30
"""Longest source path of a message that may still leave a domain."""

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
    """Return the routing decision for a message.

    Args:
        cells: names of the cells of this domain, gateways included.
        draining: names of draining cells: `cell@domain` reaches them, a bare name or a route
            does not.
        avoid: targets that queue and default routes must not select, as they were tried.
    """
    context = RoutingContext(domain, domain.address, table, frozenset(cells), frozenset(draining))
    return RouteResolution(envelope, origin, context, avoid).decide()


class RouteResolution:
    """Routing of one message in one domain.

    The attributes tell the decision cache what the decision depended on.

    Attributes:
        selected_route: the route that the message follows, if any.
        candidates: the routes of a queue, best first, if there are several; the ranking differs
            from message to message.
        depends_on_domains: the domains that were checked for having been visited.
        dependencies: the routes and cells that were looked up, existing or not.
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
        self._domain = context.domain
        self._avoid = avoid
        self._is_remote = origin.peer is not None
        self._allow_local = origin.allow_local
        self._allow_remote = origin.allow_remote
        self._allow_fan_out = origin.allow_fan_out
        self._path = envelope.destination
        # Domains that forwarded the message with this hop; empty once the hop is replaced.
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
        self.dependencies: set[Dependency] = set()

    @property
    def was_rewritten(self) -> bool:
        """Whether local hops were consumed, or an alias replaced the hop."""
        return self._path is not self._envelope.destination

    def decide(self) -> RoutingDecision:
        if self._envelope.is_expired:
            self._fail(MessageExpiredError, f"the message expired at {self._domain.name}")
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
        """Resolve the current hop, and the hops that replace it."""
        for _ in range(STEPS_MAX):
            if not self._skip_local_hops():
                return
            if self._resolve(self._path.current):
                return
        self._fail(
            HopLimitExceededError,
            f"more than {STEPS_MAX} aliases at {self._domain.name}: they form a circle",
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
        """Route a hop; return False if another hop replaced it."""
        if hop.domain == self._domain.name:
            self._deliver_to_address(hop)
            return True
        if hop.is_local:
            if self._allow_local and self._is_routable(hop.cell):
                self._log_step("{} is a cell of this domain", hop.cell)
                self._deliver(hop.cell, None)
                return True
            self._fan_out(hop)
        return self._follow_routes(hop)

    def _deliver_to_address(self, hop: CellAddress) -> None:
        self.dependencies.add(hop.cell)
        if hop.cell in self._context.cells:
            self._log_step("{} is in this domain", hop)
            self._deliver(hop.cell, None)
        else:
            self._fail(NoRouteError, f"no cell {hop.cell!r} in domain {hop.domain}")

    # Topics.

    def _fan_out(self, hop: CellAddress) -> None:
        for route in self._lookup(RouteType.TOPIC, hop.cell, ANY):
            self._was_topic = True
            if not self._allow_fan_out:
                self._log_step("{}: has its copy already", route)
            elif self._is_local_target(route.target):
                if self._is_target_routable(route):
                    self._log_step("{}: a copy", route)
                    self._deliver(route.target.cell, route.cell)
            elif not self._allow_remote:
                self._log_step("{}: not followed, the message came from a core", route)
            else:
                self._copy_to_domain(route)

    def _copy_to_domain(self, route: Route) -> None:
        if self._has_visited(route.target):
            self._log_step("{}: the message came from there", route)
        elif (gateway := self._resolve_gateway(route.target)) is None:
            self._fail(NoRouteError, f"{route}: no gateway from {self._domain.name}")
        else:
            self._log_step("{}: a copy through {}", route, gateway)
            self._forward(gateway, None)

    # Other routes.

    def _follow_routes(self, hop: CellAddress) -> bool:
        """Follow the first usable route; return False if it is an alias, which replaced the hop."""
        for route in self._routes_for(hop):
            if route.type is RouteType.ALIAS:
                self._log_step("{}: alias", route)
                self._path = self._path.with_current(route.target)
                self._visited = _NO_NAMES
                self._allow_local = self._allow_remote = True
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
        if route.type is RouteType.QUEUE and self._is_local_target(route.target):
            if not self._is_target_routable(route):
                return False
            self._log_step("{}: the consumer", route)
            self._deliver(route.target.cell, route.cell)
            return True
        gateway = self._resolve_gateway(route.target)
        if gateway is None:
            self._log_step("{}: no gateway", route)
            return False
        self._log_step("{}: through {}", route, gateway)
        is_selected = route.type in (RouteType.QUEUE, RouteType.DEFAULT)
        self._forward(gateway, route.target_name if is_selected else None)
        return True

    def _routes_for(self, hop: CellAddress) -> Iterator[Route]:
        yield from self._exacts(hop)
        if hop.is_local:
            yield from self._queue_routes(hop.cell)
        else:
            yield from self._lookup(RouteType.DOMAIN, ANY, hop.domain)
        if self._allow_remote or not hop.is_local:
            yield from self._default_routes(hop)

    def _queue_routes(self, name: str) -> list[Route]:
        routes: Iterable[Route] = self._allowed(self._lookup(RouteType.QUEUE, name, ANY))
        if not self._allow_remote:
            routes = [route for route in routes if self._is_local_target(route.target)]
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
        # Sticky: messages to one name use one core and so stay in order.
        return rendezvous_rank_by(
            str(hop).encode(),
            self._allowed(self._lookup(RouteType.DEFAULT, ANY, ANY)),
            name=_target_name,
            is_preferred=self._context.is_same_zone,
        )

    def _allowed(self, routes: Iterable[Route]) -> list[Route]:
        return [route for route in routes if route.target_name not in self._avoid]

    # Lookups.

    def _lookup(self, type: RouteType, cell: str, domain: str) -> Collection[Route]:
        key = (type, cell, domain)
        self.dependencies.add(key)
        return self._context.table.at(key)

    def _exacts(self, address: CellAddress) -> Collection[Route]:
        if address.is_domain:
            return ()
        return self._lookup(RouteType.EXACT, address.cell, address.domain)

    def _is_routable(self, cell: str) -> bool:
        """Return whether bare names and routes reach a cell of this domain."""
        self.dependencies.add(cell)
        return cell in self._context.cells and cell not in self._context.draining

    def _resolve_gateway(self, target: CellAddress) -> str | None:
        seen: set[CellAddress] = set()
        pending = [target]
        while pending:
            address = pending.pop()
            if self._is_local_target(address):
                if self._is_routable(address.cell):
                    return address.cell
            elif address not in seen:
                seen.add(address)
                routes = [
                    *self._exacts(address),
                    *self._lookup(RouteType.DOMAIN, ANY, address.domain),
                ]
                targets = [route.target for route in routes if route.type is not RouteType.ALIAS]
                pending += reversed(targets)
        return None

    # Targets.

    def _is_local_target(self, target: CellAddress) -> bool:
        """Return whether it is the address of a cell of this domain, existing or not."""
        return target.domain in (self._domain.name, LOCAL) and not target.is_domain

    def _is_target_routable(self, route: Route) -> bool:
        """Return whether the cell of a queue or topic route exists and is not draining."""
        cell = route.target.cell
        if self._is_routable(cell):
            return True
        cell_state = "draining" if cell in self._context.cells else "gone"
        self._log_step("{}: that cell is {}", route, cell_state)
        return False

    def _has_visited(self, target: CellAddress) -> bool:
        if not target.is_domain:
            return False
        self.depends_on_domains.add(target.domain)
        return target.domain in self._visited

    # Results.

    def _deliver(self, cell: str, name: str | None) -> None:
        if cell in self._deliveries:
            self._log_step("{} has its copy already", cell)
            return
        path = self._path.delivered_to(CellAddress(cell, self._domain.name))
        self._deliveries[cell] = LocalDelivery(cell, self._envelope.with_destination(path), name)

    def _forward(self, gateway: str, selected_target: str | None) -> None:
        if len(self._envelope.source) > SOURCE_HOPS_MAX:
            self._fail(
                HopLimitExceededError,
                f"too many hops at {self._domain.name}: {len(self._envelope.source)}",
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
        """Return the message with the sender that this domain vouches for.

        A remote message whose destination was rewritten here is forwarded by the domain itself,
        like by a cell on its path. Otherwise peers would reject its source path as forged.
        """
        if self.was_rewritten and self._is_remote:
            return self._envelope.with_source_hop(self._domain.cell(SYSTEM))
        return self._envelope

    def _fail(self, error: type[RoutingError], text: str) -> None:
        self._log_step("{}", text)
        hop = None if self._path.is_complete else self._path.current
        self._failure = DeliveryFailure.of(error, text, hop=hop, at=self._domain.name)

    def _log_step(self, template: str, *arguments: object) -> None:
        self._steps_log.append((template, *arguments))


def _target_name(route: Route) -> str:
    return route.target_name
