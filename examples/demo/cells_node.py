"""What domains of cells do: cores pass messages on, satellites consume a queue or send to it.

Every satellite subscribes to the topic, the one that publishes included. Each writes down what it
was given; the sender writes down what became of everything it sent.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing

from postroad import MessagingService
from postroad.cells import (
    CellDomain,
    CellMessage,
    CellsConfig,
    LearnerConfig,
    Role,
    StaticLocations,
)

from .cells_journal import Copied, Handled, Journal
from .cells_traffic import QUEUE, TOPIC, CellTraffic
from .pipe import Orders, tell
from .records import Belonging, CellsReport, Command, Linking, Ready, Resting

REPORT_EVERY_S = 0.1
CONFIG = CellsConfig(
    # Short pauses for a core that is away, so that the demo need not wait for its return.
    redial_first_s=0.05,
    redial_max_s=0.25,
    # All satellites have dialed a core that is back before anybody sends anything through it.
    learning=LearnerConfig(default_delay_s=1.0),
)


async def link_domains(service: MessagingService, task: Linking, orders: Orders) -> None:
    """Be a core until told to stop, which it does in good order."""
    cores = task.cores | {service.name: str(service.address)}
    async with CellDomain(service, role=Role.CORE, locations=_locations(cores), config=CONFIG):
        tell(Ready(address=str(service.address)))
        await orders.wait_for(Command.STOP)


async def belong(service: MessagingService, task: Belonging, orders: Orders) -> None:
    """Be a satellite until told to stop."""
    with closing(Journal(task.journal)) as journal:
        async with CellDomain(service, locations=_locations(task.cores), config=CONFIG) as domain:
            satellite = Satellite(domain, journal)
            satellite.take_part(consumes=not task.sends)
            tell(Ready(address=str(service.address)))
            async with asyncio.TaskGroup() as group:
                reporting = group.create_task(satellite.report_repeatedly())
                if task.sends:
                    await satellite.send(orders)
                await orders.wait_for(Command.STOP)
                reporting.cancel()
            satellite.report()


def _locations(cores: dict[str, str]) -> StaticLocations:
    return StaticLocations({name: [address] for name, address in cores.items()})


class Satellite:
    """A domain with its cells."""

    def __init__(self, domain: CellDomain, journal: Journal) -> None:
        self._domain = domain
        self._journal = journal
        self._traffic = CellTraffic(domain, journal)
        self._handled = 0
        self._copies = 0

    def take_part(self, *, consumes: bool) -> None:
        """Make the cells."""
        self._domain.add_function("reader", self._read, subscribe=[TOPIC])
        if consumes:
            self._domain.add_function("worker", self._handle, consume=[QUEUE])

    def _handle(self, message: CellMessage) -> list[int | str]:
        call, attempt = message.body
        self._handled += 1
        self._journal.write(Handled(call, attempt))
        return [call, attempt, self._domain.name]

    def _read(self, message: CellMessage) -> None:
        self._copies += 1
        self._journal.write(Copied(message.body))

    async def send(self, orders: Orders) -> None:
        """Call and publish, from one command to another."""
        await orders.wait_for(Command.BEGIN)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._traffic.run())
            await orders.wait_for(Command.REST)
            self._traffic.stop()
        self.report()
        tell(Resting())

    async def report_repeatedly(self) -> None:
        """Tell the story how things stand."""
        while True:
            self.report()
            await asyncio.sleep(REPORT_EVERY_S)

    def report(self) -> None:
        """Tell it once, and have the journal hold as much."""
        self._journal.flush()
        domain, ledger = self._domain, self._traffic.ledger
        tell(
            CellsReport(
                at_s=time.monotonic(),
                cores=sorted(route.target.domain for route in domain.table.defaults()),
                is_settled=domain.spreader.is_settled,
                handled=self._handled,
                copies=self._copies,
                published=self._traffic.published,
                totals=ledger.totals(),
                latencies=ledger.take_latencies(),
            )
        )
