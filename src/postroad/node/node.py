"""A node: everything its configuration asks for, started in order and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TypeVar

from postroad.cells import CellDomain, MembershipCoreDiscovery
from postroad.cells.shell.log_buffer import LOG_BUFFER
from postroad.cluster import (
    ClusterAgent,
    ClusterMessaging,
    Discovery,
    DnsDiscovery,
    StaticDiscovery,
    ZooKeeperDiscovery,
)
from postroad.core import Lifecycle
from postroad.core.errors import ConfigError, StoreError, UsageError
from postroad.durable import DurableQueues, MemoryStore, Store, store_from_url
from postroad.flows import FlowService
from postroad.net import MessagingService
from postroad.net.owned_files import make_private_directory
from postroad.services import Broker, Transporter
from postroad.services.transporters.cells import CellsTransporter

from .app import App, load_app
from .current import Belonging, reset_current_node, set_current_node
from .durable_events import DurableEvents
from .exposure import describe_exposure
from .guaranteed import GuaranteedQueues
from .health import Part, Readiness
from .jobs import JobSupervisor
from .program import Program
from .queues.queue_types import QueueTypes
from .settings import Layer, NodeConfig
from .tracing import Recorder

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MEMORY = "memory"


class Node(Lifecycle):
    """A node of a cluster, with the layers its configuration names.

        async with Node(NodeConfig(), App(services=[Greeter()])) as node:
            print(await node.broker.call("greeter.hello", {"name": "Ann"}))

    What a node was not asked to have raises UsageError when it is used.

    Args:
        config: by default a node that needs no others.
        app: what it runs; by default what `config.node.app` names.
    """

    def __init__(self, config: NodeConfig | None = None, app: App | None = None) -> None:
        self.config = config or NodeConfig()
        self._app = app
        self._parts: dict[str, object] = {}
        self._stack: AsyncExitStack | None = None
        self._program: Program | None = None
        self._events: DurableEvents | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.readiness = Readiness()
        self.started_at: float | None = None
        """Seconds since 1970; set when everything runs."""
        self.failure: StoreError | None = None
        """Why it has stopped by itself, if it has."""
        self.stop_asked = asyncio.Event()
        """Set when somebody wants the process of the node to end; whoever runs it listens."""
        self.origins: dict[str, str] = {}
        """Where settings come from, by their dotted names; empty if nobody knows."""
        self.recorder: Recorder | None = None
        """Remembers traces, if the configuration asks for that."""

    # Life.

    async def start(self) -> None:
        """Start every part, from the lowest up; if one fails, stop those before it again."""
        if self._stack is not None:
            raise UsageError(f"{self!r} was started already; make a new one")
        if self._app is None:
            target = self.config.node.app
            self._app = App() if target is None else load_app(target)
        self._check_app(self._app)
        self._stack = AsyncExitStack()
        LOG_BUFFER.attach(self)
        self._stack.callback(LOG_BUFFER.detach, self)
        # Whatever the parts run from now on belongs to this node.
        set_current_node(self)
        try:
            await self._start(self._app)
        except BaseException:
            await self._stack.aclose()
            raise
        self.started_at = time.time()
        if self.failure is not None:
            await self.stop()
            raise self.failure
        logger.info("%s runs at %s, in cluster %r", self.name, self.service.address, self.cluster)
        exposure = describe_exposure(self.config)
        logger.log(exposure.level, "%s is reached by others so: %s", self.name, exposure.text)

    def _check_app(self, app: App) -> None:
        needs = (
            (app.services, Layer.SERVICES, "services"),
            (app.flows, Layer.FLOWS, "flows"),
            (app.consumers, Layer.QUEUES, "consumers"),
            (app.cells, Layer.CELLS, "cells"),
        )
        for given, layer, what in needs:
            if given and not self.config.has(layer):
                raise ConfigError(
                    f"the program has {what}, but node.layers does not list {layer.value!r}"
                )

    async def _start(self, app: App) -> None:
        self._parts[QueueTypes.__name__] = QueueTypes(app)
        config = self.config
        settings = config.node
        if config.tracing.enabled:
            # Connections say from the first byte on whether this node takes part in traces.
            self.recorder = Recorder(settings.name, config.tracing.tuning)
            await self._enter(Part.TRACES, self.recorder)
        service = MessagingService(
            settings.cluster,
            settings.name,
            settings.bind,
            settings.advertise,
            None if config.tls is None else config.tls.config,
            config.limits,
            secret=settings.read_secrets() or None,
        )
        await self._enter(Part.NETWORK, service)
        if config.has(Layer.CLUSTER):
            await self._start_cluster(service)
        if config.has(Layer.CELLS):
            await self._start_cells(service)
        if config.has(Layer.QUEUES):
            await self._start_mail()
        if config.has(Layer.CELLS) and config.has(Layer.QUEUES):
            await self._start_guarantees()
        if config.has(Layer.FLOWS):
            await self._start_flows(app)
        if config.has(Layer.SERVICES):
            await self._start_services(app)
        await self._open(app)

    async def _enter(self, part: Part, thing: Lifecycle) -> None:
        """Start a part, and have it stopped in its turn."""
        assert self._stack is not None
        self.readiness.starts(part)
        await self._stack.enter_async_context(thing)
        self._parts[type(thing).__name__] = thing
        self.readiness.runs(part)

    async def _start_cluster(self, service: MessagingService) -> None:
        settings = self.config.cluster
        agent = ClusterAgent(
            service,
            self._discovery(),
            properties=settings.properties,
            config=settings.tuning,
        )
        await self._enter(Part.CLUSTER, agent)
        self._parts[ClusterMessaging.__name__] = ClusterMessaging(agent)

    def _discovery(self) -> Discovery:
        settings = self.config.cluster
        if settings.dns is not None:
            return DnsDiscovery([settings.dns])
        if settings.zookeeper is not None:
            return ZooKeeperDiscovery(settings.zookeeper, self.cluster)
        return StaticDiscovery(settings.seeds)

    async def _start_cells(self, service: MessagingService) -> None:
        settings = self.config.cells
        domain = CellDomain(
            service,
            role=settings.role,
            zone=settings.zone,
            core_discovery=MembershipCoreDiscovery(self.agent),
            cores=settings.cores,
            remote_commands=self.config.admin_remote,
            config=settings.tuning,
        )
        await self._enter(Part.CELLS, domain)

    async def _start_mail(self) -> None:
        settings = self.config.queues
        queues = DurableQueues(
            self.agent,
            self._make_store(),
            config=settings.tuning,
            accepted_queues=settings.accept,
            bridge=settings.bridge,
        )
        await self._enter(Part.QUEUES, queues)
        queues.store.ended.add_done_callback(self._on_store_ended)

    def _on_store_ended(self, ended: asyncio.Future[StoreError]) -> None:
        """Stop, and have the process end: a new one goes on from what the database has."""
        self.failure = ended.result()
        logger.critical("%s stops: %s", self.name, self.failure)
        self.ask_to_stop()
        if self.is_running:
            self._begin_to_stop()

    def _make_store(self) -> Store:
        location = self.config.store
        if location == _MEMORY:
            return MemoryStore()
        if "://" not in location and self.config.queues.store is None:
            make_private_directory(self.config.data)
        return store_from_url(location)

    async def _start_guarantees(self) -> None:
        settings = self.config.cells
        queues = GuaranteedQueues(self.domain, self.queues, config=settings.guarantees)
        queues.hold()
        await self._enter(Part.GUARANTEES, queues)
        for queue in settings.guaranteed:
            await queues.declare(queue)

    async def _start_flows(self, app: App) -> None:
        """Have flows begun from now on; what their steps may use is not there yet."""
        flows = FlowService(self.queues, app.flows, self.config.flows.tuning)
        flows.execution.pause_steps()
        await self._enter(Part.FLOWS, flows)

    async def _open(self, app: App) -> None:
        """Run what the user wrote, now that all it may use is there, and let others in."""
        assert self._stack is not None
        self.readiness.starts(Part.APP)
        self._program = Program(self, app, self._events, self._stack)
        await self._program.open()
        self._parts[JobSupervisor.__name__] = jobs = JobSupervisor(self)
        await self._stack.enter_async_context(jobs)
        self.readiness.runs(Part.APP)

    async def _start_services(self, app: App) -> None:
        """Start services, which can be called here from now on, and by others in the end."""
        assert self._stack is not None
        settings = self.config.services
        broker = Broker(
            self.name,
            transporter=self._transporter(),
            config=settings.tuning,
            caching=settings.cache,
            middlewares=[Belonging(self), *app.middlewares],
        )
        broker.add(*app.services)
        if self.queue_types.schemas:
            broker.add(self.queue_types)
        if settings.durable_events and self.config.has(Layer.QUEUES):
            # Services may emit as soon as they start.
            self._events = DurableEvents(broker, self.queues)
        self.readiness.starts(Part.SERVICES)
        # What services do while they start may go through it.
        self._parts[Broker.__name__] = broker
        self._stack.push_async_callback(broker.stop)
        await broker.start(opens=False)
        self.readiness.runs(Part.SERVICES)

    def _transporter(self) -> Transporter | str | None:
        named = self.config.services.transporter
        if named is None and self.config.has(Layer.CELLS):
            return CellsTransporter(self.domain)
        return named

    async def drain(self, timeout: float = 30.0) -> int:
        """Take nothing new, and let what runs end; how much still runs when the time is over.

        Its jobs stop, other nodes call its services no more, durable messages wait in their queues,
        flows that others begin are held. Services and cells serve this node itself until it stops.
        Nothing but a new start takes it back.
        """
        self.readiness.drains()
        ends_s = time.monotonic() + timeout
        if JobSupervisor.__name__ in self._parts:
            await self.jobs.stop()
        if self._program is not None:
            await self._program.rest(timeout)
        # What was at work until now may have begun flows, and waited for them.
        if not self.config.has(Layer.FLOWS):
            return 0
        return await self.flows.execution.drain_steps(max(0.0, ends_s - time.monotonic()))

    def ask_to_stop(self) -> None:
        """Have whoever runs this node as a process stop it, as at SIGTERM."""
        self.stop_asked.set()

    async def stop(self) -> None:
        """Stop every part, from the highest down."""
        if self._stack is None:
            return
        await asyncio.shield(self._begin_to_stop())

    def _begin_to_stop(self) -> asyncio.Task[None]:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name=f"stop {self.name}")
        return self._stopping

    async def _stop(self) -> None:
        assert self._stack is not None
        self.readiness.drains()
        await self._stack.aclose()
        self.readiness.ends()

    @contextmanager
    def as_current(self) -> Iterator[Node]:
        """Have `current_node()` return this node in a block, for code that no node runs.

        Such as the handlers of a web framework in whose process the node lives.
        """
        token = set_current_node(self)
        try:
            yield self
        finally:
            reset_current_node(token)

    # What it has.

    @property
    def name(self) -> str:
        """What the others call it."""
        return self.config.node.name

    @property
    def cluster(self) -> str:
        """The cluster it belongs to."""
        return self.config.node.cluster

    @property
    def is_running(self) -> bool:
        """Whether everything was started and nothing was stopped."""
        return self.started_at is not None and self._stopping is None

    @property
    def service(self) -> MessagingService:
        """Messages between nodes."""
        return self._part(MessagingService)

    @property
    def agent(self) -> ClusterAgent:
        """Who is alive."""
        return self._part(ClusterAgent)

    @property
    def communication(self) -> ClusterMessaging:
        """Messages to members by name."""
        return self._part(ClusterMessaging)

    @property
    def domain(self) -> CellDomain:
        """Messages to cells."""
        return self._part(CellDomain)

    @property
    def queues(self) -> DurableQueues:
        """Durable messages."""
        return self._part(DurableQueues)

    @property
    def queue_types(self) -> QueueTypes:
        """What its typed queues carry, and those of others."""
        return self._part(QueueTypes)

    @property
    def guaranteed(self) -> GuaranteedQueues:
        """Queues of cells that are carried by mail."""
        return self._part(GuaranteedQueues)

    @property
    def jobs(self) -> JobSupervisor:
        """Jobs of pipelines."""
        return self._part(JobSupervisor)

    @property
    def broker(self) -> Broker:
        """Services."""
        return self._part(Broker)

    @property
    def flows(self) -> FlowService:
        """Conversations that survive every crash."""
        return self._part(FlowService)

    def _part(self, kind: type[T]) -> T:
        part = self._parts.get(kind.__name__)
        if part is None:
            had = ", ".join(it.value for it in self.config.node.layers)
            why = f"its layers are {had}" if self._stack is not None else "start it first"
            raise UsageError(f"node {self.name!r} has no {kind.__name__} now: {why}")
        assert isinstance(part, kind)
        return part

    def __repr__(self) -> str:
        return f"<Node {self.name!r} of cluster {self.cluster!r}>"
