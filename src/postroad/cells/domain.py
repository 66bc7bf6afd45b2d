"""A running domain: its cells, routes and tunnels. This is the entry point for users of cells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, get_args

from postroad.cells.addresses import DomainInfo, Role, validate_domain_name
from postroad.cells.cell import Cell, CellHandler, FunctionCell
from postroad.cells.config import CellsConfig, DomainStatistics, RemoteCommands
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
from postroad.core import Lifecycle
from postroad.core.errors import ConfigError, HandshakeRejectedError, UsageError
from postroad.net import MessagingService, Tunnel

logger = logging.getLogger("postroad.cells")

# How long the clean-up of a cell or of core discovery may take beyond the grace.
_CLEANUP_TIMEOUT_S = 1.0


class CellDomain(CellMessaging, Lifecycle):
    """A domain: cells, and routes to the cells of other domains.

        async with CellDomain(service, role=Role.CORE) as domain:
            domain.add_function("echo", lambda message: message.body)
            print(await domain.call("echo", "hello"))

    Args:
        service: the started messaging service of this node; the domain has its name.
        role: a core has tunnels to all other cores, a satellite (the default) to cores only.
        zone: cores and consumers of the same zone are preferred.
        core_discovery: finds the cores; without it this domain dials none and can only be dialed.
        cores: names of the domains that may be cores, this one included if it is one; None
            accepts every domain that says it is a core. Cores are trusted about the
            domains behind them.
        remote_commands: commands that other domains may run here: "off" none, "read" read-only
            ones, "change" all.
        config: limits and times.

    Raises:
        ConfigError: a name or a setting is invalid.
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
            raise ConfigError(f"service must be a MessagingService, not {service!r}")
        self.service = service
        super().__init__(
            DomainInfo(service.name, role, zone),
            config or CellsConfig(),
            service.limits.frame_bytes_max,
        )
        self.core_discovery = StaticCoreDiscovery({}) if core_discovery is None else core_discovery
        self.cores = None if cores is None else _check_cores(cores, self.identity)
        """Names of the domains that may be cores; None accepts all."""
        if remote_commands not in get_args(RemoteCommands):
            allowed_cores = ", ".join(get_args(RemoteCommands))
            raise ConfigError(f"remote_commands={remote_commands!r} must be one of {allowed_cores}")
        self.remote_commands = remote_commands
        self._stopping: asyncio.Task[None] | None = None
        # Set by start.
        self.links: DomainLinks
        self.dialer: CoreDialer
        self.propagator: RoutePropagator

    # Lifecycle.

    async def start(self) -> None:
        """Add the built-in cells, accept tunnels and start to dial the cores.

        Raises:
            UsageError: the domain was started before.
            ConfigError: core discovery rejected its settings.
        """
        if self._state is not DomainState.NEW:
            raise UsageError(
                f"cannot start domain {self.name!r}: it is {self._state.value}; create a new one"
            )
        dispatcher = self._start_sending()
        dispatcher.remote_commands = self.remote_commands
        self.propagator = RoutePropagator(dispatcher, incarnation=self.service.incarnation)
        self.links = DomainLinks(
            dispatcher,
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
        # Raises if the service has a domain already, before anything of that one is changed.
        self.service.tunnels.accept(self._accept)
        self._state = DomainState.RUNNING
        self.service.set_hello_role(self.identity.role.value, self.identity.zone)
        try:
            for cell in builtin_cells():
                await self.add_cell(cell)
            await self.core_discovery.start(
                self.identity, (self.service.address,), self.dialer.set_cores
            )
        except BaseException:
            await self.stop(0.0)
            raise

    def _accept(self, tunnel: Tunnel) -> DomainLink:
        """Accept a tunnel of another domain; raises HandshakeRejectedError if it is not allowed."""
        peer = tunnel.peer
        is_satellite = self.identity.role is Role.SATELLITE
        allowed_cores = self.dialer.cores.keys() if self.cores is None else self.cores
        if is_satellite and peer.role == Role.CORE.value and peer.name not in allowed_cores:
            raise HandshakeRejectedError(
                f"satellite {self.name} rejected the tunnel of core {peer.name}: that core is in "
                "neither its core discovery nor its setting cores"
            )
        return self.links.accept(tunnel)

    async def stop(self, grace: float | None = None) -> None:
        """Withdraw all routes, wait `grace` seconds for handlers, close the tunnels."""
        if self._state is DomainState.RUNNING:
            self._state = DomainState.STOPPING
            grace_s = self.config.stop_grace_s if grace is None else grace
            self._stopping = asyncio.get_running_loop().create_task(self._stop(grace_s))
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        """Stop as a task of its own, so that a cancelled caller does not interrupt it."""
        deadline = self._dispatcher.loop.time() + grace_s
        self.service.tunnels.stop_accepting()
        await self._await_stop("core discovery", self.core_discovery.stop(), deadline)
        await self.dialer.close()
        for name in self._user_cells():
            self._dispatcher.registry.withdraw_cell(name)
        self.propagator.announce_shutdown()
        await self.propagator.wait_acknowledged(self._remaining_s(deadline))
        await asyncio.gather(*(self._stop_cell(name, deadline) for name in self._user_cells()))
        await self.links.wait_flushed(self._remaining_s(deadline))
        self.propagator.close()
        await asyncio.gather(
            *(tunnel.wait_closed() for tunnel in self.links.close("the domain stops"))
        )
        await asyncio.gather(*(self._stop_cell(name, 0.0) for name in list(self._runners)))
        self._calls.close()
        self._state = DomainState.STOPPED
        await self._calls.wait_finished()

    def _remaining_s(self, deadline: float) -> float:
        return max(0.0, deadline - self._dispatcher.loop.time())

    # State.

    @property
    def dispatcher(self) -> MessageDispatcher:
        """Dispatcher of the messages, for the built-in cells."""
        return self._running()

    @property
    def table(self) -> RouteTable:
        """The current route table."""
        return self._running().registry.table

    @property
    def cells(self) -> list[str]:
        """Names of all cells of this domain, tunnels included."""
        return sorted(self._running().registry.runners)

    def statistics(self) -> DomainStatistics:
        """Return a copy of the counters."""
        return self._dispatcher.statistics.copy()

    @property
    def _runners(self) -> dict[str, CellRunner]:
        return self._dispatcher.registry.runners

    def _user_cells(self) -> list[str]:
        """Return the names of the cells that users added."""
        return [name for name, runner in self._runners.items() if not runner.cell.is_system]

    # Cells.

    async def add_cell(self, cell: Cell) -> None:
        """Add a cell; when this returns, messages reach it.

        Raises:
            ConfigError: the name is taken or reserved.
            UsageError: the cell belongs to a domain already.
        """
        self._check_name_free(cell.name)
        cell.attach(self)
        try:
            await cell.on_start()
            self._check_name_free(cell.name)
            self._register(cell)
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
        """Add a plain function as a cell; it is called with each message and returns the reply."""
        self._check_name_free(name)
        cell = FunctionCell(
            name, handler, consume=consume, subscribe=subscribe, concurrency=concurrency
        )
        cell.attach(self)
        try:
            self._register(cell)
        except BaseException:
            cell.attach(None)
            raise

    def cell(self, name: str, **options: Any) -> Callable[[CellHandler], CellHandler]:
        """Return a decorator that adds a function as a cell: `@domain.cell("echo")`."""

        def add(handler: CellHandler) -> CellHandler:
            self.add_function(name, handler, **options)
            return handler

        return add

    async def remove_cell(self, name: str, grace: float | None = None) -> None:
        """Remove a cell; it may finish its messages for `grace` seconds, else they are rejected."""
        self._check_not_current(self._runner(name))
        grace_s = self.config.stop_grace_s if grace is None else grace
        await self._stop_cell(name, self._dispatcher.loop.time() + grace_s)

    async def drain_cell(self, name: str, timeout: float | None = None) -> bool:
        """Withdraw a cell from all queues and topics, and wait until it is idle.

        Its full address still reaches it, and its name again once it consumes or subscribes.
        Returns False after `timeout` seconds (the stop grace by default): the routes are deleted
        then, but a peer has not acknowledged it, or a handler still runs.
        """
        runner = self._runner(name)
        self._check_not_current(runner)
        timeout_s = self.config.stop_grace_s if timeout is None else timeout
        deadline = self._dispatcher.loop.time() + timeout_s
        # Messages that peers send before they acknowledge the withdrawal are still accepted.
        self._dispatcher.registry.withdraw_cell(name)
        is_acknowledged = await self.propagator.wait_acknowledged(timeout_s)
        routes = [route for route in self.table if route.target == runner.cell.address]
        self._dispatcher.registry.change_routes(deleted=routes)
        self._dispatcher.registry.drain_cell(name)
        return await self._wait_idle(runner, deadline) and is_acknowledged

    def _check_name_free(self, name: str) -> None:
        if name.startswith(GATEWAY_PREFIX):
            raise ConfigError(
                f"invalid cell name {name!r}: {GATEWAY_PREFIX}... is reserved for tunnels"
            )
        if name in self._running().registry.runners:
            raise ConfigError(f"cannot add cell {name!r}: domain {self.name} has one already")

    def _check_not_current(self, runner: CellRunner) -> None:
        if runner.is_current:
            raise UsageError(
                f"cell {runner.name!r} cannot wait for its own handler: use another task"
            )

    def _register(self, cell: Cell) -> None:
        address = cell.address
        zone = self.identity.zone
        routes = [Route.to_queue(queue, address, zone) for queue in cell.queues]
        routes += [Route.to_topic(topic, address, zone) for topic in cell.topics]
        self._running().registry.add_cell(CellRunner(cell, self._dispatcher), routes)

    def _runner(self, name: str) -> CellRunner:
        runner = self._running().registry.runners.get(name)
        if runner is None:
            raise CellNotFoundError(f"domain {self.name} has no cell {name!r}")
        return runner

    async def _stop_cell(self, name: str, deadline: float) -> None:
        runner = self._runners.get(name)
        if runner is None:
            return
        self._dispatcher.registry.remove_cell(name)
        await self._wait_idle(runner, deadline)
        await runner.stop()
        await self._await_stop(f"cell {name}", runner.cell.on_stop(), deadline)
        runner.cell.attach(None)

    async def _await_stop(self, subject: str, stopping: Awaitable[None], deadline: float) -> None:
        """Await the clean-up of user code; log if it raises or exceeds its deadline."""
        try:
            async with asyncio.timeout(self._remaining_s(deadline) + _CLEANUP_TIMEOUT_S):
                await stopping
        except TimeoutError:
            logger.warning("domain %s: stop of %s timed out", self.name, subject)
        except Exception:
            logger.exception("domain %s: stop of %s failed", self.name, subject)

    async def _wait_idle(self, runner: CellRunner, deadline: float) -> bool:
        try:
            async with asyncio.timeout(self._remaining_s(deadline)):
                await runner.wait_idle()
        except TimeoutError:
            return False
        return True

    # Queues, topics and routes.

    def consume(self, name: str, *queues: str) -> None:
        """Make a cell a consumer of further queues."""
        self._add_routes(name, Route.to_queue, queues)

    def stop_consuming(self, name: str, *queues: str) -> None:
        """Make a cell no consumer of these queues any more."""
        self._delete_routes(name, Route.to_queue, queues)

    def subscribe(self, name: str, *topics: str) -> None:
        """Make a cell a subscriber of further topics."""
        self._add_routes(name, Route.to_topic, topics)

    def unsubscribe(self, name: str, *topics: str) -> None:
        """Make a cell no subscriber of these topics any more."""
        self._delete_routes(name, Route.to_topic, topics)

    def _add_routes(self, name: str, make: Callable[..., Route], names: Iterable[str]) -> None:
        target, zone = self._runner(name).cell.address, self.identity.zone
        registry = self._dispatcher.registry
        registry.change_routes(added=[make(routed, target, zone) for routed in names])
        registry.restore_cell(name)

    def _delete_routes(self, name: str, make: Callable[..., Route], names: Iterable[str]) -> None:
        target = self._runner(name).cell.address
        deleted = [make(routed, target) for routed in names]
        self._dispatcher.registry.change_routes(deleted=deleted)

    def change_routes(self, *, added: Iterable[Route] = (), deleted: Iterable[Route] = ()) -> None:
        """Add and delete routes, all or none; raises RouteRejectedError if one is invalid."""
        dispatcher = self._running()
        new_routes = list(added)
        for route in new_routes:
            self.check_route(route)
        dispatcher.registry.change_routes(added=new_routes, deleted=deleted)

    def check_route(self, route: Route) -> None:
        """Check that the target of a route exists; raises CellNotFoundError."""
        dispatcher = self._running()
        check_route_target(
            route,
            domain=self.name,
            cells=dispatcher.registry.runners,
            gateways=dispatcher.registry.gateways,
        )

    def on_routes_changed(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every change of the route table; returns a function that unregisters."""
        listeners = self._running().registry.listeners
        listeners.append(callback)
        return lambda: listeners.remove(callback) if callback in listeners else None

    async def wait_routes_acknowledged(self, timeout: float = 5.0) -> bool:
        """Wait until all peers have acknowledged the routes of this domain.

        Returns False after `timeout` seconds.
        """
        self._running()
        return await self.propagator.wait_acknowledged(timeout)

    def __repr__(self) -> str:
        return f"<CellDomain {self.identity.role.value} {self.name} {self._state.value}>"


def _check_cores(cores: Iterable[str], local: DomainInfo) -> frozenset[str]:
    if isinstance(cores, str):
        raise ConfigError(f"cores must be a list of names, not the string {cores!r}")
    names = frozenset(validate_domain_name(name) for name in cores)
    if local.role is Role.CORE and local.name not in names:
        listed = ", ".join(sorted(names)) or "no names"
        raise ConfigError(
            f"domain {local.name!r} is a core, but cores lists {listed}: add its name"
        )
    return names
