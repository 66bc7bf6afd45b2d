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

_NOBODY: frozenset[str] = frozenset()


def route_message(
    envelope: Envelope,
    origin: MessageOrigin = LOCAL_ORIGIN,
    *,
    table: RouteTable,
    cells: Collection[str],
    domain: DomainInfo,
    hidden: Collection[str] = (),
    avoid: frozenset[str] = _NOBODY,
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
        envelope, origin, RoutingContext(domain, table, cells, hidden), avoid
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
        around: RoutingContext,
        avoid: frozenset[str] = _NOBODY,
    ) -> None:
        self._envelope = envelope
        self._around = around
        self._table = around.table
        self._domain = around.domain
        self._avoid = avoid
        self._is_from_elsewhere = origin.peer is not None
        self._may_stay = origin.allow_local
        self._may_leave = origin.allow_remote
        self._may_fan_out = origin.allow_fan_out
        self._path = envelope.destination
        # Domains that had this very hop before us; none once it is another one.
        self._visited = envelope.source.trailing_domains()
        if origin.peer is not None:
            self._visited |= {origin.peer}
        self._was_topic = False
        self._deliveries: dict[str, LocalDelivery] = {}
        self._forwards: dict[tuple[str, CellAddress], Forward] = {}
        self._failure: DeliveryFailure | None = None
        self._trace: list[tuple[object, ...]] = []
        self.taken: Route | None = None
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
            self._follow()
        failure = self._failure
        is_wanted = not (
            self._envelope.suppress_errors and failure and failure.code == NoRouteError.code
        )
        return RoutingDecision(
            deliveries=tuple(self._deliveries.values()),
            forwards=tuple(self._forwards.values()),
            failure=failure,
            should_reply=failure is not None and is_wanted and self._envelope.can_reply,
            steps_log=tuple(self._trace),
        )

    def _follow(self) -> None:
        """Resolve the current hop, and whatever takes its place, to the end."""
        for _ in range(STEPS_MAX):
            if not self._take_own_hops():
                return
            if self._resolve(self._path.current):
                return
        self._fail(
            HopLimitExceededError,
            f"{STEPS_MAX} aliases, one after the other, at {self._domain.name}",
        )

    def _take_own_hops(self) -> bool:
        while not self._path.is_complete:
            if self._path.current != self._around.address:
                return True
            self._log_step("{} is this domain: on to the next hop", self._path.current)
            self._path = self._path.advanced()
            self._visited = _NOBODY
        self._fail(NoRouteError, f"the path ends at domain {self._domain.name}, not at a cell")
        return False

    def _resolve(self, hop: CellAddress) -> bool:
        """Settle what becomes of a hop; False if another one took its place."""
        if hop.domain == self._domain.name:
            self._deliver_to_own(hop)
            return True
        if hop.is_local:
            if self._may_stay and self._around.is_routable(hop.cell):
                self._log_step("{} is a cell of this domain", hop.cell)
                self._deliver(hop.cell, None)
                return True
            self._fan_out(hop)
        return self._find(hop)

    def _deliver_to_own(self, hop: CellAddress) -> None:
        if hop.cell in self._around.cells:
            self._log_step("{} is in this domain", hop)
            self._deliver(hop.cell, None)
        else:
            self._fail(NoRouteError, f"no cell {hop.cell!r} in domain {hop.domain}")

    # Topics.

    def _fan_out(self, hop: CellAddress) -> None:
        for route in self._table.topics(hop.cell):
            self._was_topic = True
            if not self._may_fan_out:
                self._log_step("{}: has its copy already", route)
            elif self._around.is_local_target(route.target):
                self._copy_to_cell(route)
            elif not self._may_leave:
                self._log_step("{}: not followed, the message came from a core", route)
            else:
                self._copy_to_domain(route)

    def _copy_to_cell(self, route: Route) -> None:
        if self._is_open_to(route):
            self._log_step("{}: a copy", route)
            self._deliver(route.target.cell, route.cell)

    def _copy_to_domain(self, route: Route) -> None:
        if self._was_at(route.target):
            self._log_step("{}: the message came from there", route)
        elif (gateway := self._around.resolve_gateway(route.target)) is None:
            self._fail(NoRouteError, f"{route}: no way there from {self._domain.name}")
        else:
            self._log_step("{}: a copy through {}", route, gateway)
            self._forward(gateway, None)

    # Everything else.

    def _find(self, hop: CellAddress) -> bool:
        """Follow the first route that leads anywhere; False if it gave the hop another name."""
        for route in self._routes_for(hop):
            if route.type is RouteType.ALIAS:
                self._log_step("{}: another name", route)
                self._rename(route.target)
                return False
            if self._was_at(route.target):
                self._log_step("{}: the message came from there", route)
            elif self._try_route(route):
                self.taken = route
                return True
        if self._was_topic:
            self._log_step("no other route for {}", hop)
        else:
            self._fail(NoRouteError, f"no route for {hop} at {self._domain.name}")
        return True

    def _try_route(self, route: Route) -> bool:
        if route.type is RouteType.QUEUE and self._around.is_local_target(route.target):
            return self._goes_to_consumer(route)
        gateway = self._around.resolve_gateway(route.target)
        if gateway is None:
            self._log_step("{}: no way there", route)
            return False
        self._log_step("{}: through {}", route, gateway)
        is_choice = route.type in (RouteType.QUEUE, RouteType.DEFAULT)
        self._forward(gateway, route.target_name if is_choice else None)
        return True

    def _goes_to_consumer(self, route: Route) -> bool:
        if not self._is_open_to(route):
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
        if self._may_leave or not hop.is_local:
            yield from self._default_routes(hop)

    def _queue_routes(self, name: str) -> list[Route]:
        routes: Iterable[Route] = self._allowed(self._table.queues(name))
        if not self._may_leave:
            routes = [route for route in routes if self._around.is_local_target(route.target)]
        ranked = rank_for_message(
            self._envelope.id, routes, name=_target_name, is_preferred=self._around.is_same_zone
        )
        if len(ranked) > 1:
            self.candidates = ranked
            self.depends_on_domains.update(it.target.domain for it in ranked if it.target.is_domain)
        return ranked

    def _default_routes(self, hop: CellAddress) -> list[Route]:
        # Sticky: what is sent to one name goes one way and so stays in order.
        return rendezvous_rank_by(
            str(hop).encode(),
            self._allowed(self._table.defaults()),
            name=_target_name,
            is_preferred=self._around.is_same_zone,
        )

    def _allowed(self, routes: Iterable[Route]) -> list[Route]:
        return [route for route in routes if route.target_name not in self._avoid]

    # What targets are.

    def _is_open_to(self, route: Route) -> bool:
        """Whether the cell a queue or topic route leads to takes what comes by it."""
        cell = route.target.cell
        if self._around.is_routable(cell):
            return True
        fate = "draining" if cell in self._around.cells else "gone"
        self._log_step("{}: that cell is {}", route, fate)
        return False

    def _was_at(self, target: CellAddress) -> bool:
        if not target.is_domain:
            return False
        self.depends_on_domains.add(target.domain)
        return target.domain in self._visited

    # What is decided.

    def _rename(self, address: CellAddress) -> None:
        self._path = self._path.with_current(address)
        self._visited = _NOBODY
        self._may_stay = self._may_leave = True

    def _deliver(self, cell: str, name: str | None) -> None:
        if cell in self._deliveries:
            self._log_step("{} has its copy already", cell)
            return
        path = self._path.delivered_to(CellAddress(cell, self._domain.name))
        self._deliveries[cell] = LocalDelivery(cell, self._envelope.with_destination(path), name)

    def _forward(self, gateway: str, choice: str | None) -> None:
        if len(self._envelope.source) > SOURCE_HOPS_MAX:
            self._fail(
                HopLimitExceededError, f"{len(self._envelope.source)} hops at {self._domain.name}"
            )
            return
        if (gateway, self._path.current) in self._forwards:
            self._log_step("{} has its copy already", gateway)
            return
        leaving = self._sent_on().with_destination_and_hop(self._path, self._around.address)
        self._forwards[gateway, self._path.current] = Forward(gateway, leaving, choice)

    def _sent_on(self) -> Envelope:
        """The message as this domain answers for it.

        One from elsewhere that gets another destination here is sent on by the domain itself, as by
        any cell on its path. Others could not believe that it came from its sender by this way.
        """
        if self.was_rewritten and self._is_from_elsewhere:
            return self._envelope.with_source_hop(self._domain.cell(SYSTEM))
        return self._envelope

    def _fail(self, error: type[RoutingError], text: str) -> None:
        self._log_step("{}", text)
        hop = _hop_of(self._path)
        self._failure = DeliveryFailure.of(error, text, hop=hop, at=self._domain.name)

    def _log_step(self, form: str, *arguments: object) -> None:
        self._trace.append((form, *arguments))


def _target_name(route: Route) -> str:
    return route.target_name


def _hop_of(path: CellPath) -> CellAddress | None:
    return None if path.is_complete else path.current
