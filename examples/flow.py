"""A flow that outlives its node: it books a trip, waits to be paid, and goes on after a restart.

Run it with `python -m examples.flow`. The node is stopped and started again within one process to
keep it short; nothing changes when the process is killed in between, at any moment.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from postroad import run
from postroad.flows import FlowContext, flow
from postroad.node import App, Node, NodeConfig
from postroad.node.settings import NodeSettings


def book(what: str) -> str:
    print(f"  booking: {what}")
    return f"{what} booked"


@flow
async def travel(ctx: FlowContext, city: str) -> str:
    """What a step returned is recorded, so no step that has ended is done again."""
    print("  the code of the flow runs")
    train = await ctx.step(book, f"train to {city}")
    paid = await ctx.wait_for_signal("paid", int)
    room = await ctx.step(book, f"room in {city}")
    return f"{train}, {room}, {paid} paid"


async def main(directory: Path) -> None:
    config = NodeConfig(node=NodeSettings(name="agency", data=str(directory)))
    app = App(flows=[travel])

    print("the node runs:")
    async with Node(config, app) as node:
        handle = await node.flows.start_flow_with_id("trip of Ada", travel, "Paris")
        while not await node.flows.admin.history(handle.id):  # noqa: ASYNC110 - it is in a database
            await asyncio.sleep(0.01)
    print("the node is gone; it runs again:")
    async with Node(config, app) as node:
        handle = await node.flows.start_flow_with_id("trip of Ada", travel, "Paris")
        await node.flows.signal(handle.id, "paid", 120)
        print(await handle.result())


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        run(main(Path(place)))
