"""What nodes of services do: each is a broker in a domain of cells, and one of these is the core.

Each writes down what it was asked and what it asked; see `services_books.py`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing

from postroad import MessagingService
from postroad.cells import CellDomain, Role, StaticLocations
from postroad.services import BreakerConfig, Broker, BrokerConfig, RetryPolicy, Service
from postroad.services.transporters.cells import CellsTransporter

from .cells_journal import Journal
from .cells_node import CONFIG as CELLS_CONFIG
from .pipe import Orders, tell
from .records import Command, Ready, Resting, ServicesReport, Serving
from .services_books import Bookkeeper
from .services_offered import Audit, Desk, Quotes
from .services_traffic import RETRY, ServicesTraffic

REPORT_EVERY_S = 0.1
# A node that dies is missed soon; until then its calls time out, and the breaker at the desk
# leaves it alone.
HEARTBEAT_S, SILENCE_S = 0.5, 2.5
BREAKER = BreakerConfig(is_enabled=True, window_s=0.5, requests_min=5, half_open_s=0.5)


async def serve(service: MessagingService, task: Serving, orders: Orders) -> None:
    """Be a node until told to stop."""
    cores = task.cores or {service.name: str(service.address)}
    # A node that is killed has written down what it did.
    with closing(Journal(task.journal, buffering=0)) as journal:
        async with CellDomain(
            service,
            role=Role.SATELLITE if task.cores else Role.CORE,
            locations=StaticLocations({name: [address] for name, address in cores.items()}),
            config=CELLS_CONFIG,
        ) as domain:
            await ServicesNode(domain, task, journal).run(orders)


class ServicesNode:
    """A broker and its accounts."""

    def __init__(self, domain: CellDomain, task: Serving, journal: Journal) -> None:
        self._address = str(domain.service.address)
        self._task = task
        self._books = Bookkeeper(journal)
        self._broker = Broker(
            domain.name,
            transporter=CellsTransporter(domain),
            config=BrokerConfig(
                serializer="MsgPack",  # JSON writes each byte of a stream as a number.
                heartbeat_interval_s=HEARTBEAT_S,
                heartbeat_timeout_s=SILENCE_S,
                stream_idle_s=5.0,
                retry=RETRY if task.sends else RetryPolicy(),
                breaker=BREAKER if task.offers == "desk" else BreakerConfig(),
            ),
            middlewares=[self._books],
        )
        self._broker.add(_make_service(task.offers, journal))
        self._traffic = ServicesTraffic(self._broker, journal)
        self._books.on_error = self._traffic.meet

    async def run(self, orders: Orders) -> None:
        """Offer the service, and send if that is the task, until told to stop."""
        # Its own service may wait for those of others, so the story must not wait for it.
        tell(Ready(address=self._address))
        async with self._broker, asyncio.TaskGroup() as group:
            reporting = group.create_task(self._report_repeatedly())
            if self._task.sends:
                await self._send(orders)
            await orders.wait_for(Command.STOP)
            reporting.cancel()
            self._report()

    async def _send(self, orders: Orders) -> None:
        await orders.wait_for(Command.BEGIN)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._traffic.run())
            await orders.wait_for(Command.REST)
            self._traffic.stop()
        self._report()
        tell(Resting())

    async def _report_repeatedly(self) -> None:
        while True:
            self._report()
            await asyncio.sleep(REPORT_EVERY_S)

    def _report(self) -> None:
        books, traffic = self._books, self._traffic
        known = self._broker.registry.services()
        tell(
            ServicesReport(
                at_s=time.monotonic(),
                nodes=sorted({node.id for node, it in known if not it.is_internal}),
                priced=books.taken["quotes.price"],
                emitted=books.emitted,
                heard=books.heard,
                streams=traffic.streams,
                stream_bytes=traffic.stream_bytes,
                totals=traffic.ledger.totals(),
                latencies=traffic.ledger.take_latencies(),
            )
        )


def _make_service(name: str, journal: Journal) -> Service:
    if name == "quotes":
        return Quotes(journal)
    return Desk() if name == "desk" else Audit()
