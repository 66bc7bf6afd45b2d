"""The program of a child process: one node that answers, calls another, or exchanges mail with it.

It is started by `processes.py`, is configured by the first line of its input and ends when that
input ends, so it never outlives the process that started it, however that one ended.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from postroad import Limits, Message, MessagingService, PostroadError, TlsConfig, run

from .clearing_customer import post_payments
from .payments import exchange_mail
from .pipe import Orders, tell
from .records import Answering, Calling, Clearing, Command, Mailing, NodeConfig, Posting, Ready
from .tally import Tally
from .traffic import SUBJECT, Traffic, mirror

CLUSTER = "demo"
REPORT_EVERY_S = 0.2
# Long enough to see that callers back off, short enough not to prolong the outage.
LIMITS = Limits(backoff_max_s=0.25)


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
    async with _make_service(config) as service:
        match config.task:
            case Answering() as task:
                await _answer(service, task, orders)
            case Calling() as task:
                await _call(service, task, orders)
            case Mailing() as task:
                await exchange_mail(service, task, orders)
            case Posting() as task:
                await post_payments(service, task, orders)
            case Clearing() as task:
                # It needs Spark, which need not be there for the rest.
                from .clearing_house import clear_payments

                await clear_payments(service, task, orders)


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
