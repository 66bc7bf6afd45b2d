"""The cells of one domain, running: what users of cells work with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, get_args

from postroad.cells.addresses import DomainInfo, Role, validate_domain_name
from postroad.cells.cell import Cell, CellHandler, FunctionCell
from postroad.cells.config import CellsConfig, RemoteCommands
from postroad.cells.core_discovery import CoreDiscovery, StaticCoreDiscovery
from postroad.cells.delivery.cell_registry import GATEWAY_PREFIX
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.cells.delivery.core_dialer import CoreDialer
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.domain_links import DomainLink, DomainLinks
from postroad.cells.delivery.propagator import RoutePropagator
from postroad.cells.errors import CellNotFoundError
from postroad.cells.routing.route import Route
from postroad.cells.routing.route_table import RouteTable, check_route_target
from postroad.cells.sender import CellMessaging, DomainState
from postroad.cells.shell.system_cells import builtin_cells
from postroad.cells.statistics import DomainStatistics
from postroad.core import Lifecycle
from postroad.core.errors import ConfigError, HandshakeRejectedError, UsageError
from postroad.net import MessagingService, Tunnel

logger = logging.getLogger("postroad.cells")

# What somebody else's cleaning up may take beyond the grace.
_CLEAN_UP_S = 1.0


class CellDomain(CellMessaging, Lifecycle):
    """A domain: cells, and the way to those of other domains.

        async with CellDomain(service, role=Role.CORE) as domain:
            domain.add_function("echo", lambda message: message.body)
            print(await domain.call("echo", "hello"))

    Args:
        service: the started messaging service of this node; its name is the domain's.
        role: a core is connected to all other cores, a satellite to cores only.
        zone: cores and consumers of the same zone are preferred.
        core_discovery: tells where the cores are; without it this domain is alone, or is dialed.
        cores: the names of all that may be cores, this domain included if it is one; None for
            whoever says so. A core is believed what it says of the domains behind it.
        remote_commands: which commands of other domains cells answer: "off" none, "read" those
            that only look, "change" all.
        config: every maximum and time.
    """

    def __init__(
        self,
        service: MessagingService,
        *,
        role: Role = Role.SATELLITE,
        zone: str | None = None,
        core_discovery: CoreDiscovery | None = None,
        cores: Iterable[str] | None = None,
        remote_commands: RemoteCommands = "read",
        config: CellsConfig | None = None,
    ) -> None:
        if not isinstance(service, MessagingService):
            raise ConfigError(f"a domain needs a MessagingService, not {service!r}")
        self.service = service
        super().__init__(
            DomainInfo(service.name, role, zone),
            config or CellsConfig(),
            service.limits.frame_bytes_max,
        )
        self.core_discovery = StaticCoreDiscovery({}) if core_discovery is None else core_discovery
        self.cores = None if cores is None else _check_cores(cores, self.identity)
        """The names of all that may be cores; None for whoever says so."""
        if remote_commands not in get_args(RemoteCommands):
            known = ", ".join(get_args(RemoteCommands))
            raise ConfigError(f"remote_commands={remote_commands!r} must be one of {known}")
        self.remote_commands = remote_commands
        self._stopping: asyncio.Task[None] | None = None
        # Set by start.
        self.links: DomainLinks
        self.dialer: CoreDialer
        self.propagator: RoutePropagator

    # Life.

    async def start(self) -> None:
        """Make the cells every domain has, and look for other domains."""
        if self._state is not DomainState.NEW:
            raise UsageError(f"domain {self.name!r} is {self._state.value}; make a new one")
        exchange = self._start_sending()
        exchange.remote_commands = self.remote_commands
        self.propagator = RoutePropagator(exchange, incarnation=self.service.incarnation)
        self.links = DomainLinks(
            exchange,
            on_up=self.propagator.link_up,
            on_down=self.propagator.link_down,
            on_update=self.propagator.receive,
            cores=self.cores,
        )
        self.dialer = CoreDialer(
            self.service,
            self.identity,
            self.config,
            accept=self.links.accept,
            has_link=self.links.by_domain.__contains__,
            cores=self.cores,
        )
        # It raises if the service has a domain already, which must not be disturbed.
        self.service.tunnels.accept(self._accept)
        self._state = DomainState.RUNNING
        self.service.set_hello_role(self.identity.role.value, self.identity.zone)
        try:
            for cell in builtin_cells(self):
                await self.add_cell(cell)
            await self.core_discovery.start(
                self.identity, (self.service.address,), self.dialer.set_cores
            )
        except BaseException:
            await self.stop(0.0)
            raise

    def _accept(self, tunnel: Tunnel) -> DomainLink:
        """Accept a tunnel of another domain; raises HandshakeRejectedError if it may not."""
        peer = tunnel.peer
        is_satellite = self.identity.role is Role.SATELLITE
        known = self.dialer.cores.keys() if self.cores is None else self.cores
        if is_satellite and peer.role == Role.CORE.value and peer.name not in known:
            raise HandshakeRejectedError(
                f"{self.name} is a satellite and knows no core {peer.name}: it dials those it knows"
            )
        return self.links.accept(tunnel)

    async def stop(self, grace: float | None = None) -> None:
        """Withdraw everything this domain offers, finish what was begun, and close the tunnels."""
        if self._state is DomainState.RUNNING:
            self._state = DomainState.STOPPING
            grace_s = self.config.stop_grace_s if grace is None else grace
            self._stopping = asyncio.get_running_loop().create_task(self._stop(grace_s))
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        """A task of its own, so that it ends even if its caller is cancelled."""
        deadline = self._exchange.loop.time() + grace_s
        self.service.tunnels.stop_accepting()
        await self._await_stop("what tells of cores", self.core_discovery.stop(), deadline)
        await self.dialer.close()
        for name in self._user_cells():
            self._exchange.withdraw_cell(name)
        self.propagator.announce_shutdown()
        await self.propagator.wait_acknowledged(self._remaining_s(deadline))
        await asyncio.gather(*(self._end(name, deadline) for name in self._user_cells()))
        await self.links.wait_flushed(self._remaining_s(deadline))
        self.propagator.close()
        await asyncio.gather(*(it.wait_closed() for it in self.links.close("the domain stops")))
        await asyncio.gather(*(self._end(name, 0.0) for name in list(self._runners)))
        self._calls.close()
        self._state = DomainState.STOPPED
        await self._calls.wait_finished()

    def _remaining_s(self, deadline: float) -> float:
        return max(0.0, deadline - self._exchange.loop.time())

    # What it is.

    @property
    def dispatcher(self) -> MessageDispatcher:
        """What moves its messages; for the cells that come with every domain."""
        return self._running()

    @property
    def table(self) -> RouteTable:
        """All routes, as they are now."""
        return self._running().table

    @property
    def cells(self) -> list[str]:
        """The names of all cells that can be reached here, tunnels included."""
        return sorted(self._running().runners)

    def statistics(self) -> DomainStatistics:
        """A copy of the counters."""
        return self._exchange.statistics.copy()

    @property
    def _runners(self) -> dict[str, CellRunner]:
        return self._exchange.runners

    def _user_cells(self) -> list[str]:
        """The cells that are neither tunnels nor in every domain."""
        return [name for name, it in self._runners.items() if not it.cell.is_system]

    # Cells.

    async def add_cell(self, cell: Cell) -> None:
        """Let a cell in: from now on it can be reached."""
        self._check_vacant(cell.name)
        cell.attach(self)
        try:
            await cell.on_start()
            self._check_vacant(cell.name)
            self._publish(cell)
        except BaseException:
            await self._await_stop(f"cell {cell.name}", cell.on_stop(), 0.0)
            cell.attach(None)
            raise

    def add_function(
        self,
        name: str,
        handler: CellHandler,
        *,
        consume: Iterable[str] = (),
        subscribe: Iterable[str] = (),
        concurrency: int = 1,
    ) -> None:
        """Let a plain function be a cell; it is called with each message and returns the reply."""
        self._check_vacant(name)
        cell = FunctionCell(
            name, handler, consume=consume, subscribe=subscribe, concurrency=concurrency
        )
        cell.attach(self)
        try:
            self._publish(cell)
        except BaseException:
            cell.attach(None)
            raise

    def cell(self, name: str, **options: Any) -> Callable[[CellHandler], CellHandler]:
        """The same as a decorator: `@domain.cell("echo")`."""

        def add(handler: CellHandler) -> CellHandler:
            self.add_function(name, handler, **options)
            return handler

        return add

    async def remove_cell(self, name: str, grace: float | None = None) -> None:
        """Let a cell go: it finishes what it has, up to `grace` seconds, and is gone."""
        self._check_outside(self._runner(name))
        grace_s = self.config.stop_grace_s if grace is None else grace
        await self._end(name, self._exchange.loop.time() + grace_s)

    async def drain_cell(self, name: str, timeout: float | None = None) -> bool:
        """Take a cell out of all queues and topics, and wait until it has nothing left to do.

        It can still be reached by its full address, and by its name once it consumes or
        subscribes again. False if it took too long; then it is
        drained, but others may not know, or it is still at work.
        """
        runner = self._runner(name)
        self._check_outside(runner)
        timeout_s = self.config.stop_grace_s if timeout is None else timeout
        deadline = self._exchange.loop.time() + timeout_s
        # What others sent before they knew is still welcome.
        self._exchange.withdraw_cell(name)
        is_known = await self.propagator.wait_acknowledged(timeout_s)
        self._withdraw(name)
        self._exchange.drain_cell(name)
        return await self._wait_idle(runner, deadline) and is_known

    def _check_vacant(self, name: str) -> None:
        if name.startswith(GATEWAY_PREFIX):
            raise ConfigError(f"cell name {name!r}: {GATEWAY_PREFIX}... is for tunnels")
        if name in self._running().runners:
            raise ConfigError(f"domain {self.name} has a cell {name!r} already")

    def _check_outside(self, runner: CellRunner) -> None:
        if runner.is_current:
            raise UsageError(f"cell {runner.name!r} cannot wait for itself: make a task that does")

    def _publish(self, cell: Cell) -> None:
        address = cell.address
        zone = self.identity.zone
        routes = [Route.to_queue(queue, address, zone) for queue in cell.queues]
        routes += [Route.to_topic(topic, address, zone) for topic in cell.topics]
        self._running().add_cell(CellRunner(cell, self._exchange), routes)

    def _runner(self, name: str) -> CellRunner:
        runner = self._running().runners.get(name)
        if runner is None:
            raise CellNotFoundError(f"domain {self.name} has no cell {name!r}")
        return runner

    def _withdraw(self, name: str) -> None:
        """Delete all routes that lead to a cell."""
        address = self.identity.cell(name)
        routes = [route for route in self._exchange.table if route.target == address]
        self._exchange.change_routes(deleted=routes)

    async def _end(self, name: str, deadline: float) -> None:
        runner = self._runners.get(name)
        if runner is None:
            return
        self._exchange.remove_cell(name)
        await self._wait_idle(runner, deadline)
        await runner.stop()
        await self._await_stop(f"cell {name}", runner.cell.on_stop(), deadline)
        runner.cell.attach(None)

    async def _await_stop(self, what: str, end: Awaitable[None], deadline: float) -> None:
        """Wait for the end of something that is not ours: it may fail, and takes its time."""
        try:
            async with asyncio.timeout(self._remaining_s(deadline) + _CLEAN_UP_S):
                await end
        except TimeoutError:
            logger.warning("%s: %s takes too long to stop", self.name, what)
        except Exception:
            logger.exception("%s: %s failed to stop", self.name, what)

    async def _wait_idle(self, runner: CellRunner, deadline: float) -> bool:
        try:
            async with asyncio.timeout(self._remaining_s(deadline)):
                await runner.wait_idle()
        except TimeoutError:
            return False
        return True

    # Queues, topics and routes.

    def consume(self, name: str, *queues: str) -> None:
        """Have a cell take messages of further queues."""
        target, zone = self._runner(name).cell.address, self.identity.zone
        self._exchange.change_routes(added=[Route.to_queue(it, target, zone) for it in queues])
        self._exchange.restore_cell(name)

    def stop_consuming(self, name: str, *queues: str) -> None:
        """Have a cell take messages of these queues no more."""
        target = self._runner(name).cell.address
        self._exchange.change_routes(deleted=[Route.to_queue(it, target) for it in queues])

    def subscribe(self, name: str, *topics: str) -> None:
        """Have a cell get copies of what is published to further topics."""
        target, zone = self._runner(name).cell.address, self.identity.zone
        self._exchange.change_routes(added=[Route.to_topic(it, target, zone) for it in topics])
        self._exchange.restore_cell(name)

    def unsubscribe(self, name: str, *topics: str) -> None:
        """Have a cell get no copies any more."""
        target = self._runner(name).cell.address
        self._exchange.change_routes(deleted=[Route.to_topic(it, target) for it in topics])

    def change_routes(self, *, added: Iterable[Route] = (), deleted: Iterable[Route] = ()) -> None:
        """Change the table by hand; raises RouteRejectedError if that cannot be."""
        exchange = self._running()
        wanted = list(added)
        for route in wanted:
            self.check_route(route)
        exchange.change_routes(added=wanted, deleted=deleted)

    def check_route(self, route: Route) -> None:
        """Refuse a route that leads nowhere; raises CellNotFoundError."""
        exchange = self._running()
        check_route_target(
            route, domain=self.name, cells=exchange.runners, gateways=exchange.gateways
        )

    def on_routes_changed(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have a callback told of every change of the table; gives what ends that."""
        listeners = self._running().listeners
        listeners.append(callback)
        return lambda: listeners.remove(callback) if callback in listeners else None

    async def wait_routes_acknowledged(self, timeout: float = 5.0) -> bool:
        """Wait until all connected domains know what this one offers; False if that takes long."""
        self._running()
        return await self.propagator.wait_acknowledged(timeout)

    def __repr__(self) -> str:
        return f"<CellDomain {self.identity.role.value} {self.name} {self._state.value}>"


def _check_cores(cores: Iterable[str], own: DomainInfo) -> frozenset[str]:
    if isinstance(cores, str):
        raise ConfigError(f"cores: several names are needed, not the text {cores!r}")
    names = frozenset(validate_domain_name(it) for it in cores)
    if own.role is Role.CORE and own.name not in names:
        listed = ", ".join(sorted(names)) or "nobody"
        raise ConfigError(f"domain {own.name!r} is a core, but cores lists {listed}: add its name")
    return names
