"""Cells of three domains: a call to a queue and a copy of a topic, wherever their consumers are.

Run it with `python -m examples.cells`. The domains live in one process to keep it short; nothing
changes when each is a program on a machine of its own.
"""

import asyncio

from postroad import run
from postroad.cells import CellDomain, CellMessage, Role, StaticCoreDiscovery
from postroad.net import MessagingService


def take_order(message: CellMessage) -> str:
    print(f"the kitchen took an order of {message.sender}: {message.body}")
    return f"your {message.body}"


async def main() -> None:
    async with (
        MessagingService("example", "hub") as hub,
        MessagingService("example", "bar") as bar,
        MessagingService("example", "kitchen") as kitchen,
    ):
        cores = {"hub": [hub.address]}
        async with (
            CellDomain(hub, role=Role.CORE, core_discovery=StaticCoreDiscovery(cores)),
            CellDomain(bar, core_discovery=StaticCoreDiscovery(cores)) as guests,
            CellDomain(kitchen, core_discovery=StaticCoreDiscovery(cores)) as cooks,
        ):
            is_shown = asyncio.Event()

            @guests.cell("board", subscribe=["menu"])
            def show(message: CellMessage) -> None:
                print(f"the board at the bar shows: {message.body}")
                is_shown.set()

            cooks.add_function("cook", take_order, consume=["orders"])

            # A call waits until somebody is known who takes it.
            print(f"the bar got the reply: {await guests.call('orders', 'tea')}")
            # A publication does not wait for subscribers to become known.
            await guests.wait_routes_acknowledged()
            cooks.publish("menu", "tea is out")
            await is_shown.wait()


if __name__ == "__main__":
    run(main())
