"""The program of a child process: one node, which does what its task says.

It is started by `processes.py`, is configured by the first line of its input and ends when that
input ends, so it never outlives the process that started it, however that one ended.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from postroad import Limits, Message, MessagingService, PostroadError, TlsConfig, run

from .pipe import Orders, tell
from .records import (
    Agreeing,
    Answering,
    Belonging,
    Calling,
    Clearing,
    Command,
    Linking,
    Mailing,
    Meeting,
    NodeConfig,
    NodeTask,
    Posting,
    Ready,
    Serving,
)
from .tally import Tally
from .traffic import SUBJECT, Traffic, mirror

CLUSTER = "demo"
REPORT_EVERY_S = 0.2
# Long enough to see that callers back off, short enough not to prolong the outage.
LIMITS = Limits(backoff_max_s=0.25)

Work: TypeAlias = Callable[[MessagingService], Awaitable[None]]
"""What a node does once it listens."""


def main() -> int:
    """Run the node; its log goes to standard error."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        run(_main())
    except PostroadError as error:
        logging.getLogger(__name__).error("%s", error)
        return 1
    return 0


async def _main() -> None:
    orders = await Orders.open()
    config = await orders.read_config()
    work = _prepare(config.task, orders)
    async with _make_service(config) as service:
        await work(service)


def _prepare(task: NodeTask, orders: Orders) -> Work:
    """Load what a task needs, and nothing else: it would take time at each start, or need Spark."""
    match task:
        case Answering():
            return lambda service: _answer(service, task, orders)
        case Calling():
            return lambda service: _call(service, task, orders)
        case Mailing():
            from .payments import exchange_mail

            return lambda service: exchange_mail(service, task, orders)
        case Linking():
            from .cells_node import link_domains

            return lambda service: link_domains(service, task, orders)
        case Belonging():
            from .cells_node import belong

            return lambda service: belong(service, task, orders)
        case Serving():
            from .services_node import serve

            return lambda service: serve(service, task, orders)
        case Meeting():
            from .moleculer_meeting import meet

            return lambda service: meet(service, task, orders)
        case Agreeing():
            from .flows_bank import agree

            return lambda service: agree(service, task, orders)
        case Posting():
            from .clearing_customer import post_payments

            return lambda service: post_payments(service, task, orders)
        case Clearing():
            from .clearing_house import clear_payments

            return lambda service: clear_payments(service, task, orders)


def _make_service(config: NodeConfig) -> MessagingService:
    tls = TlsConfig(certificate=config.certificate, key=config.key, trust=config.trust)
    return MessagingService(CLUSTER, config.name, bind=config.bind, tls=tls, limits=LIMITS)


async def _answer(service: MessagingService, task: Answering, orders: Orders) -> None:
    tally = Tally(task.tally)

    def handle(message: Message) -> bytes:
        tally.add()
        return mirror(message.payload)

    service.subscribe(SUBJECT, handle)
    tell(Ready(address=str(service.address)))
    await orders.wait_for(Command.STOP)


async def _call(service: MessagingService, task: Calling, orders: Orders) -> None:
    traffic = Traffic(service, task.peer, callers=task.callers, payload_bytes=task.payload_bytes)
    tell(Ready(address=str(service.address)))
    async with asyncio.TaskGroup() as group:
        reporter = group.create_task(_report(traffic))
        load = group.create_task(traffic.run())
        await orders.wait_for(Command.STOP)
        traffic.stop()
        await load
        reporter.cancel()
    tell(traffic.report())


async def _report(traffic: Traffic) -> None:
    while True:
        tell(traffic.report())
        await asyncio.sleep(REPORT_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
