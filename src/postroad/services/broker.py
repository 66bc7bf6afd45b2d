"""The broker: one node of a cluster of services."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Unpack

import msgspec

from postroad.core import Lifecycle
from postroad.core.errors import UsageError

from .caching import make_cache
from .calling import Calling, CallOptions, Calls
from .config import BrokerConfig, with_settings
from .context import Context
from .describing import check_name
from .emitting import Emitting
from .engine import Engine
from .errors import BrokerOptionsError, RequestTimeoutError, ServiceNotAvailableError
from .eventing import Eventing
from .hosting import Hosting, quietly
from .identity import own_info
from .ids import Ids
from .local_services import Caching, ServiceBuilder
from .middleware import Middleware, wrapped
from .node_service import NodeService
from .pings import PingResult
from .registry import Registry
from .service import Service
from .transit import logger
from .transporters import Transporter, make_transporter


class Broker(Emitting, Lifecycle):
    """A node: it runs services, and calls services of all nodes.

        broker = Broker("node-1", transporter="nats://127.0.0.1:4222")
        broker.add(Posts())
        async with broker:
            await broker.call("posts.find", {"limit": 10})

    Args:
        node_id: the name of the node, which no other may have; by default host and process.
        transporter: a Transporter, its name or its URL; None for a node without others.
        config: settings; or give them one by one, by the names that `BrokerConfig` has.
        middlewares: around everything; the first is the outermost.
        caching: keeps results of actions that ask for it: a Cache, True or `memory` for one in
            memory, or the URL of a Redis server.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(
        self,
        node_id: str | None = None,
        *,
        transporter: Transporter | str | None = None,
        config: BrokerConfig | None = None,
        middlewares: Sequence[Middleware] = (),
        caching: Caching | str | bool | None = None,
        **settings: Any,
    ) -> None:
        self.node_id = node_id or f"{socket.gethostname().lower()}-{os.getpid()}"
        check_name(self.node_id, "node")
        self.config = with_settings(config or BrokerConfig(), settings)
        self._transporter = (
            make_transporter(transporter) if isinstance(transporter, str) else transporter
        )
        self._middlewares = tuple(middlewares)
        self._caching = make_cache(caching) if isinstance(caching, str | bool) else caching
        self._ids = Ids()
        self.new_id = self._ids.next
        """Gives an id that was never given."""
        self._engine: Engine | None = None
        self._calling: Calling | None = None
        self._is_started = False
        self._turn = asyncio.Lock()
        self._starting: asyncio.Future[None] | None = None
        self._call = wrapped(self._middlewares, "call", self._call_plainly)
        self._mcall = wrapped(self._middlewares, "mcall", self._mcall_plainly)
        self._wrap_events(self._middlewares)
        builder = ServiceBuilder(
            self.config, self._middlewares, self._caching, node_id=self.node_id
        )
        self._hosting = Hosting(self, builder, self._middlewares)
        for middleware in self._middlewares:
            middleware.broker_created(self)
        self.add(NodeService())

    def now(self) -> float:
        """The time by which limits are kept, in seconds from some point in the past."""
        return asyncio.get_running_loop().time()

    @property
    def registry(self) -> Registry:
        """All nodes and what they offer."""
        return self._running().registry

    @property
    def is_running(self) -> bool:
        """Whether it was started, or is just being so, and has not stopped."""
        return self._engine is not None

    @property
    def is_connected(self) -> bool:
        """Whether other nodes can be reached now."""
        engine = self._engine
        if engine is None or engine.network is None:
            return False
        return engine.network.transit.is_connected

    @property
    def cache(self) -> Caching:
        """What keeps results of actions, to have it forget some; raises UsageError without one."""
        if self._caching is None:
            raise UsageError("this broker keeps no results; make it with `caching=`")
        return self._caching

    # Services.

    def add(self, *services: Service) -> None:
        """Add services to a broker that is not started; they start with it."""
        if self._is_started:
            raise UsageError("the broker runs already; use `await broker.launch(service)`")
        for service in services:
            self._hosting.add(service)

    async def launch(self, service: Service) -> None:
        """Add a service to a broker that runs, and start it."""
        await self._hosting.launch(service, self._running())

    async def remove(self, full_name: str) -> None:
        """Stop a service and forget it; does nothing if there is none of that name."""
        await self._hosting.remove(full_name, self._engine)

    def services(self) -> list[Service]:
        """The services of this node, without those that every node has."""
        return [it.service for it in self._hosting if not it.info.is_internal]

    # The life of a node.

    async def start(self, *, opens: bool = True) -> None:
        """Connect, find the other nodes, start the services, and announce them.

        Waits for the server of the transporter if it is not there yet. If something fails, all
        that was begun is ended again.

        Args:
            opens: whether others are served at once; if not, `open` has to be called. Services
                can be called at this node before that. One whose dependencies nobody has yet opens
                the broker before it waits, because the other node may wait for this one as well.

        Raises:
            BrokerOptionsError: another node has the same name.
            UsageError: the broker was stopped meanwhile.
        """
        async with self._turn:
            if self._engine is not None:
                return
            self._starting = asyncio.ensure_future(self._bring_up(opens))
            try:
                await self._starting
            except BaseException as error:
                await self._tear_down()
                if isinstance(error, asyncio.CancelledError) and not _is_cancelled():
                    raise UsageError("the broker was stopped while it started") from None
                raise
            finally:
                self._starting = None

    async def open(self) -> None:
        """Offer the services to other nodes, after a start that did not."""
        await self._running().open()

    async def withdraw(self, timeout_s: float | None = None) -> None:
        """Offer nothing to other nodes any more, and let what runs for them end.

        Calls of this node itself go on until `stop`.

        Args:
            timeout_s: what takes longer is ended; `stop_timeout_s` of the settings by default.
        """
        engine = self._engine
        if engine is not None:
            await engine.withdraw()
            await self._end_served(engine, timeout_s)

    async def stop(self) -> None:
        """Say that nothing is offered any more, let calls finish, stop the services, leave."""
        if self._starting is not None:
            self._starting.cancel()
        async with self._turn:
            await self._tear_down()

    async def _bring_up(self, opens: bool) -> None:
        for middleware in self._middlewares:
            await middleware.broker_starting(self)
        self._engine = engine = Engine(
            self,
            own_info(self.new_id(), self._own_metadata()),
            self._transporter,
            self.config,
            self._middlewares,
            self._tell,
        )
        self._calling = engine.calling
        if not opens:
            engine.hold()
        if self._caching is not None:
            await self._caching.start(self.config.namespace)
        await engine.start()
        self._refuse_conflict(engine)
        self._is_started = True
        await self._hosting.start_all(engine)
        self._refuse_conflict(engine)
        engine.settle()
        for middleware in self._middlewares:
            await middleware.broker_started(self)
        self._tell("$broker.started", {})

    def _refuse_conflict(self, engine: Engine) -> None:
        if engine.conflict is not None:
            raise BrokerOptionsError(str(engine.conflict))

    async def _tear_down(self) -> None:
        engine = self._engine
        if engine is None:
            return
        for middleware in self._middlewares:
            await quietly(middleware.broker_stopping, self)
        try:
            try:
                await engine.withdraw()
                self._tell("$broker.stopped", {})
                await self._finish(engine)
            except asyncio.CancelledError:
                # Nobody waits for calls any more, but the services are stopped all the same.
                await engine.finish(0.0)
                await self._hosting.stop_all(engine)
                raise
            await self._hosting.stop_all(engine)
        finally:
            try:
                await engine.stop()
                if self._caching is not None:
                    await self._caching.stop()
            finally:
                self._engine = self._calling = None
                self._is_started = False
        for middleware in self._middlewares:
            await quietly(middleware.broker_stopped, self)

    async def _finish(self, engine: Engine) -> None:
        """Let what runs come to its end, as long as there is time."""
        deadline = self.now() + self.config.stop_timeout_s
        await self._hosting.idle(self.config.stop_timeout_s)
        await self._end_served(engine, max(0.0, deadline - self.now()))

    async def _end_served(self, engine: Engine, timeout_s: float | None) -> None:
        """Let what runs for others and for events end."""
        limit_s = self.config.stop_timeout_s if timeout_s is None else timeout_s
        ended = await engine.finish(limit_s)
        if ended:
            logger.warning("%d calls and events took too long and were ended", ended)

    def _running(self) -> Engine:
        if self._engine is None:
            raise UsageError("the broker does not run; start it first")
        return self._engine

    # Calls.

    def call(
        self, action: str, params: Any = None, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]:
        """Call an action of any node, and wait for its result.

        Args:
            action: the full name, as `v2.posts.find`.
            params: what the action gets; an empty object if nothing is given.
            options: see `CallOptions`.

        Returns:
            What the action returned; an `IncomingStream` if that was an async iterable.

        Raises:
            MoleculerError: one of the errors below it; `retryable` and `outcome` tell what to do.
        """
        return self._call(action, params, options)

    def mcall(
        self,
        calls: Calls,
        *,
        settled: bool = False,
        **options: Unpack[CallOptions],
    ) -> Coroutine[Any, Any, Any]:
        """Make several calls at once.

        Args:
            calls: pairs of action and params; or such pairs by names of your choice.
            settled: give errors in place of results, instead of raising the first.
            options: for all calls. Meta does not come back from them.

        Returns:
            The results in order, or by name.
        """
        return self._mcall(calls, settled, options)

    def _call_plainly(
        self, action: str, params: Any, options: CallOptions
    ) -> Coroutine[Any, Any, Any]:
        calling = self._calling
        if calling is None:
            raise UsageError("the broker does not run; start it first")
        return calling.call(action, params, options)

    async def _mcall_plainly(self, calls: Any, settled: bool, options: CallOptions) -> Any:
        pairs = [*calls.values()] if isinstance(calls, Mapping) else [*calls]
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise UsageError(f"mcall takes pairs of action and params, not {pair!r:.80}")
        if options.get("stream") is not None:
            raise UsageError("a stream can go with one call, not with several")
        options = {**options, "merges_meta": False}
        made = [self.call(action, params, **options) for action, params in pairs]
        results = await asyncio.gather(*made, return_exceptions=settled)
        if isinstance(calls, Mapping):
            return dict(zip(calls, results, strict=True))
        return results

    def context(
        self, *, meta: Mapping[str, Any] | None = None, headers: Mapping[str, Any] | None = None
    ) -> Context:
        """A context to make calls from; its meta gets what they put there."""
        return Context(
            self,
            meta={**meta} if meta else None,
            headers={**headers} if headers else None,
            level=0,
            node_id=self.node_id,
        )

    def _eventing(self) -> Eventing:
        return self._running().eventing

    def _tell(self, event: str, data: Mapping[str, Any]) -> None:
        """Tell the handlers of this node what happens to it."""
        engine = self._engine
        if engine is not None:
            engine.eventing.run_local(Context(self, params=data, event=event))

    # Other nodes.

    async def ping(self, node_id: str, *, timeout_s: float = 2.0) -> PingResult:
        """Find out whether a node is there, and how far away.

        Raises:
            RequestTimeoutError: it did not answer in time.
        """
        network = self._running().network
        if node_id == self.node_id:
            return PingResult(node_id, 0.0, 0.0)
        if network is None:
            raise RequestTimeoutError(data={"action": "$ping", "nodeID": node_id})
        result = await network.pings.ping(node_id, self.new_id(), timeout_s)
        self._tell("$node.pong", result.to_wire())
        return result

    async def wait_for_services(
        self, names: str | Iterable[str], *, timeout_s: float | None = None
    ) -> None:
        """Wait until services are there, by their full names, at any node.

        Raises:
            ServiceNotAvailableError: one was still not there when the time was over.
        """
        wanted = [names] if isinstance(names, str) else [*names]
        engine = self._running()

        def missing() -> list[str]:
            return [it for it in wanted if not engine.registry.has_service(it)]

        try:
            async with asyncio.timeout(timeout_s):
                await engine.changed(lambda: not missing())
        except TimeoutError:
            text = f"not there within {timeout_s:g} s: {', '.join(missing())}"
            raise ServiceNotAvailableError(text, data={"action": missing()[0]}) from None

    def statistics(self) -> dict[str, Any]:
        """What this node counted since it was started."""
        engine = self._running()
        counted: dict[str, Any] = {
            "running": self._hosting.running,
            "eventsRunning": len(engine.eventing),
            "eventsDropped": engine.eventing.dropped,
            "eventsFailed": engine.eventing.failures,
        }
        if engine.network is not None:
            counted |= {
                "pending": len(engine.network.remote),
                "orphans": engine.network.remote.orphans,
                "serving": len(engine.network.serving),
                "streamsIn": len(engine.network.streaming.incoming),
                "streamsOut": len(engine.network.streaming.outgoing),
                "transit": msgspec.to_builtins(engine.network.transit.statistics),
            }
        return counted

    def __repr__(self) -> str:
        state = "running" if self._engine is not None else "stopped"
        return f"<Broker {self.node_id} {state}, {len(self._hosting)} services>"


def _is_cancelled() -> bool:
    """Whether somebody wants the task that runs to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
