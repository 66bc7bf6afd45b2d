"""A node of services: a broker with services, and a clerk who uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from postroad.cells import CellDomain
from postroad.core.errors import UsageError
from postroad.services import Broker, BrokerConfig
from postroad.services.errors import BrokerOptionsError, MoleculerError
from postroad.services.transporters.cells import CellsTransporter
from postroad.testing import SimCluster, require
from tests.simulation.brokers.books import Books
from tests.simulation.brokers.clerk import Clerk
from tests.simulation.brokers.offers import OFFERS
from tests.simulation.services.station import leftovers_of

_RETRY_S = 0.3
_INTERVAL_S = 0.15
# All calls have ended by then, and so has what their answers bring.
_ENDING_S = 1.0


class Branch:
    """A node in one domain, until it leaves."""

    def __init__(
        self,
        sim: SimCluster,
        node_id: str,
        domain: CellDomain,
        books: Books,
        config: BrokerConfig,
        rng: Random,
    ) -> None:
        self.node_id = node_id
        self.books = books
        self.life = books.new_life(node_id)
        self.transporter = CellsTransporter(domain, connect_timeout_s=3.0)
        self.broker = Broker(node_id, transporter=self.transporter, config=config)
        self.clerk = Clerk(self.broker, books, rng)
        self.offers: dict[str, None] = {}
        """The services that it has now."""
        self.at_work = 0
        """Handlers that run."""
        self.is_talkative = True
        self.is_leaving = self.is_over = False
        self._sim = sim
        self._host = domain.name
        self._rng = rng
        self._is_started = False
        self._wanted: tuple[str, ...] = ()
        self._turn = asyncio.Lock()
        self._living: asyncio.Task[None] | None = None
        self.acts: dict[asyncio.Task[None], str] = {}

    def __str__(self) -> str:
        return f"node {self.life}"

    @property
    def is_up(self) -> bool:
        """Whether it is started, connected, and has the services that it should."""
        is_there = self._is_started and not self.is_over and self.broker.is_connected
        return is_there and self.offers.keys() == {*self._wanted}

    # Its life.

    def start(self, actions: tuple[str, ...]) -> None:
        """Start the broker, offer services and use those of others, until it leaves."""
        self._wanted = actions
        self._living = self._sim.spawn(self._live(), self._sim.nodes[self._host])

    async def _live(self) -> None:
        for name in self._wanted:
            self.broker.add(OFFERS[name](self))
            self.offers[name] = None
        await self._start()
        self._is_started = True
        await self.listen(self._wanted)
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / _INTERVAL_S))
            if self.is_talkative:
                name, act = self.clerk.do_something()
                self.do(name, self._tolerant(act))

    async def _start(self) -> None:
        while True:
            try:
                await self.broker.start()
                return
            except BrokerOptionsError:
                # What a former life of this node said is still on its way.
                await asyncio.sleep(_RETRY_S)

    async def listen(self, actions: tuple[str, ...]) -> None:
        self._wanted = actions
        async with self._turn:
            if not self._is_started or self.is_leaving:
                return
            for name in [offer for offer in self.offers if offer not in self._wanted]:
                await self.broker.remove(name)
                del self.offers[name]
            for name in [service for service in self._wanted if service not in self.offers]:
                await self.broker.launch(OFFERS[name](self))
                self.offers[name] = None

    async def leave(self) -> None:
        self.is_leaving = True
        async with self._turn:
            await self._stop_living()
            await self.broker.stop()
        self.is_over = True
        require(not self.at_work, f"{self} is stopped, and {self.at_work} handlers run")
        if self.acts:
            await asyncio.wait(self.acts, timeout=_ENDING_S)
        require(not self.acts, f"{self} is stopped, but not {', '.join(self.acts.values())}")
        require(not self.transporter.is_connected, f"{self} is stopped, and is connected")

    async def _stop_living(self) -> None:
        if self._living is not None:
            self._living.cancel()
            (result,) = await asyncio.gather(self._living, return_exceptions=True)
            is_cancelled = isinstance(result, asyncio.CancelledError)
            require(is_cancelled, f"{self} ended with {result!r}")

    # What it does.

    def do(self, name: str, act: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have the clerk do something; a failure fails the run."""
        task = self._sim.spawn(act, self._sim.nodes[self._host])
        self.acts[task] = name
        task.add_done_callback(lambda done: self.acts.pop(done))
        return task

    async def _tolerant(self, act: Coroutine[Any, Any, None]) -> None:
        """In times of trouble everything may fail, but only with the errors that are for that."""
        try:
            await act
        except MoleculerError:
            return
        except UsageError as error:
            require(self.is_leaving, f"{self} is there, and says: {error}")

    # What is left.

    def check_packets(self) -> None:
        engine = self.broker._engine
        if engine is not None and engine.network is not None:
            counted = engine.network.transit.statistics
            is_fine = not (counted.failures or counted.malformed or counted.versions_refused)
            require(is_fine, f"{self} got packets that it could not deal with: {counted}")

    def leftovers(self) -> list[str]:
        """What should have come to its end when nobody has done anything for a while."""
        engine = self.broker._engine
        if engine is None or engine.network is None:
            return []
        network = engine.network
        counts = {
            "handlers at work": self.at_work,
            "calls at work": self.broker._hosting.running,
            "events at work": len(engine.eventing),
            "acks that are waited for": len(engine.eventing.acks),
            "calls that wait": len(network.remote),
            "calls for others": len(network.serving),
            "streams that come": len(network.streaming.incoming),
            "streams that go": len(network.streaming.outgoing),
            "bytes to be read": network.streaming.incoming.bytes_waiting,
        }
        leftovers = [f"{number} {what}" for what, number in counts.items() if number]
        return leftovers + leftovers_of(self.transporter)
