"""One process of a domain: a messaging service, cells and their messages, from start to end."""

from __future__ import annotations

import asyncio

import msgspec

from postroad.cells import CellDomain, CellHandler, CellMessage, StaticCoreDiscovery
from postroad.net import MessagingService
from postroad.testing import SimCluster, SimNode, require
from tests.simulation.cells.books import Books, Disturbance, write_number
from tests.simulation.cells.plan import Plan, PlannedCell, PlannedDomain, PlannedEvent, Work
from tests.simulation.cells.talker import Talker

CLUSTER = "simulated"
PORT = 7000
_SLOW_S_MAX = 0.04


class CellState(msgspec.Struct):
    planned: PlannedCell
    queues: set[str]
    topics: set[str]
    is_draining: bool = False
    is_drained: bool = False

    @classmethod
    def of(cls, planned: PlannedCell) -> CellState:
        return cls(planned, set(planned.queues), set(planned.topics))


class Process:
    """Runs a domain on a host."""

    def __init__(self, sim: SimCluster, planned: PlannedDomain, plan: Plan, books: Books) -> None:
        self.node: SimNode = sim.nodes[planned.name]
        self.identity = planned.identity
        self.label = f"{planned.name}#{self.node.starts + 1}"
        self.pauses = Disturbance(lambda: sim.now)
        self.is_stopping = False
        # Whether slow handlers wait.
        self.is_stalled = False
        # The cells it should have by now.
        self.cells: dict[str, CellState] = {}
        self._sim = sim
        self._planned = planned
        self._plan = plan
        self._books = books
        self._rng = sim.simulation.rng_for(f"process {self.label}")
        # In the order they began in, which a set would not keep.
        self._changes: dict[asyncio.Task[None], None] = {}
        # Set once the program runs.
        self.domain: CellDomain | None = None
        self.talker: Talker | None = None

    def __str__(self) -> str:
        return self.label

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def is_up(self) -> bool:
        return self.node.is_running and not self.is_stopping

    # Its life.

    async def run(self) -> None:
        """The program: be a domain until there is a reason to end."""
        try:
            async with self._make_service() as service, self._make_domain(service) as domain:
                self.domain = domain
                self.talker = self._make_talker(domain)
                for cell in self._planned.cells:
                    self._add(cell)
                await self.talker.talk()
        except asyncio.CancelledError:
            await self._check_end()
            raise

    def stop(self) -> None:
        """Ask it to end; called from outside. Asking twice would be to insist."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self.node.resume()
        self.node.stop()

    def _make_service(self) -> MessagingService:
        bind = f"{self.node.host}:{PORT}"
        return MessagingService(CLUSTER, self.name, bind, limits=self._plan.limits)

    def _make_domain(self, service: MessagingService) -> CellDomain:
        return CellDomain(
            service,
            role=self.identity.role,
            zone=self.identity.zone,
            core_discovery=StaticCoreDiscovery(
                {core: [f"{core}:{PORT}"] for core in self._plan.cores}
            ),
            config=self._plan.config,
        )

    def _make_talker(self, domain: CellDomain) -> Talker:
        names = [domain.name for domain in self._plan.domains]
        return Talker(self._sim, self.label, domain, self._books, self.pauses, self._rng, names)

    async def _check_end(self) -> None:
        """What the domain had begun is over; changes may still be waited for."""
        for task in self._changes:
            task.cancel()
        await asyncio.gather(*self._changes, return_exceptions=True)
        if self.talker is not None:
            unfinished = self.talker.unfinished
            require(not unfinished, f"{self} stopped, but not these calls: {', '.join(unfinished)}")
        tasks = [task for task in self.node.process.tasks if not task.done()]
        names = [str(task) for task in tasks if task is not asyncio.current_task()]
        require(not names, f"{self} stopped, but not these tasks: {', '.join(names)}")

    # Its cells.

    def _add(self, cell: PlannedCell) -> None:
        assert self.domain is not None
        state = self.cells[cell.name] = CellState.of(cell)
        self.domain.add_function(
            cell.name,
            self._make_handler(state),
            consume=cell.queues,
            subscribe=cell.topics,
            concurrency=cell.concurrency,
        )

    def _make_handler(self, state: CellState) -> CellHandler:
        place = f"{state.planned.name}@{self.label}"

        def handle(message: CellMessage) -> object:
            require(
                not (state.is_drained and message.route_name),
                f"{place} is drained, but gets a message to {message.route_name}",
            )
            sent = self._books.handle(place, message)
            reply = write_number(sent.number)
            if state.planned.work is Work.FAILING:
                raise ArithmeticError("as planned")
            return self._take_time(reply) if state.planned.work is Work.SLOW else reply

        return handle

    async def _take_time(self, reply: bytes) -> bytes:
        while True:
            await asyncio.sleep(self._rng.uniform(0, _SLOW_S_MAX))
            if not self.is_stalled:
                return reply

    async def pester(self, other: Process) -> None:
        """Call all slow cells of another process, with little patience."""
        for name, cell in other.cells.items():
            if cell.planned.work is Work.SLOW and self.is_up and self.talker is not None:
                self.talker.pester(f"{name}@{other.name}")

    # Changes. All are called in the process itself.

    async def change(self, event: PlannedEvent) -> None:
        if self.domain is None or not self.is_up:
            return
        task = asyncio.current_task()
        assert task is not None
        self._changes[task] = None
        try:
            await getattr(self, f"_on_{event.kind.value}")(self.domain, event)
        except asyncio.CancelledError:
            require(self.is_stopping, f"{event.kind.value} of {self} was cancelled")
        finally:
            del self._changes[task]

    async def _on_flood(self, domain: CellDomain, event: PlannedEvent) -> None:
        if self.talker is not None:
            self.talker.flood(event.queue, event.topic)

    async def _on_add(self, domain: CellDomain, event: PlannedEvent) -> None:
        if event.cell.name not in self.cells:
            self._add(event.cell)

    async def _on_remove(self, domain: CellDomain, event: PlannedEvent) -> None:
        if self.cells.pop(event.cell.name, None) is not None:
            await domain.remove_cell(event.cell.name)

    async def _on_drain(self, domain: CellDomain, event: PlannedEvent) -> None:
        state = self.cells.get(event.cell.name)
        if state is not None and not state.is_draining:
            state.is_draining = True
            state.queues.clear()
            state.topics.clear()
            state.is_drained = await domain.drain_cell(event.cell.name)

    async def _on_consume(self, domain: CellDomain, event: PlannedEvent) -> None:
        state = self._changeable(event)
        if state is not None and event.queue not in state.queues:
            state.queues.add(event.queue)
            domain.consume(event.cell.name, event.queue)

    async def _on_unconsume(self, domain: CellDomain, event: PlannedEvent) -> None:
        if (state := self._changeable(event)) is not None and state.queues:
            state.queues.discard(queue := min(state.queues))
            domain.stop_consuming(event.cell.name, queue)

    async def _on_subscribe(self, domain: CellDomain, event: PlannedEvent) -> None:
        state = self._changeable(event)
        if state is not None and event.topic not in state.topics:
            state.topics.add(event.topic)
            domain.subscribe(event.cell.name, event.topic)

    async def _on_unsubscribe(self, domain: CellDomain, event: PlannedEvent) -> None:
        if (state := self._changeable(event)) is not None and state.topics:
            state.topics.discard(topic := min(state.topics))
            domain.unsubscribe(event.cell.name, topic)

    def _changeable(self, event: PlannedEvent) -> CellState | None:
        state = self.cells.get(event.cell.name)
        return None if state is None or state.is_draining else state
