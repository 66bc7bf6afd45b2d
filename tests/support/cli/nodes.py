"""A node with its API for tests of the `postroad` command: it runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from postroad.admin.serving import AdminServer
from postroad.cells import Cell, CellMessage, command
from postroad.core.errors import Reject
from postroad.durable import Message, Transaction
from postroad.flows import FlowContext, flow
from postroad.node import App, Consuming, Node
from postroad.services import Context, Service, action, event
from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import config_of

T = TypeVar("T")


class Greeter(Service):
    """Says hello."""

    name = "greeter"

    @action
    async def hello(self, ctx: Context, name: str) -> str:
        """Greet somebody."""
        return f"Hello {name}!"

    @event("order.created")
    async def note(self, ctx: Context) -> None:
        """Take note."""
        return


class Printer(Cell):
    """Prints what it is sent."""

    def handle(self, message: CellMessage) -> str:
        return "printed"

    @command("ink")
    def tell_ink(self) -> str:
        """How much ink is left."""
        return "half a bottle"


async def take_order(message: Message, tx: Transaction) -> None:
    """Refuse whatever says so."""
    if b"bad" in message.body:
        raise Reject("no such article")


@flow
async def pay(ctx: FlowContext, amount: int) -> str:
    """Pay an amount when somebody approves of it."""
    await ctx.wait_for_signal("approved", bool)
    return f"paid {amount}"


def make_app() -> App:
    """What the node runs."""
    return App(
        services=[Greeter()],
        flows=[pay],
        consumers=[Consuming(queue="orders", handler=take_order)],
        cells=[Printer("printer")],
    )


class RunningNode:
    """A node in a thread, with what a test needs to know of it."""

    def __init__(self, node: Node, admin: AdminServer, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node
        self.data = node.config.data
        self.url = admin.url
        self.token = admin.token
        self._loop = loop

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop of the node."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    @property
    def place(self) -> list[str]:
        """The options that say where it is."""
        return ["--data", str(self.data), "--node", self.node.name]


@contextmanager
def running_node(
    data: Path, name: str = "alpha", *, app: App | None = None, seeds: tuple[str, ...] = ()
) -> Iterator[RunningNode]:
    """A node of a cluster `shop` that serves its API at any port."""
    config = config_of(
        data,
        name,
        node={"cluster": "shop"},
        cluster={"seeds": seeds},
        admin={"bind": "127.0.0.1:0", "remote": "change"},
        tracing={"enabled": True},
    )
    started: list[RunningNode] = []
    failed: list[BaseException] = []
    is_up = threading.Event()
    stopping: list[asyncio.Event] = []

    async def live() -> None:
        stop = asyncio.Event()
        stopping.append(stop)
        async with (
            Node(config, make_app() if app is None else app) as node,
            AdminServer(node) as admin,
        ):
            started.append(RunningNode(node, admin, asyncio.get_running_loop()))
            is_up.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            failed.append(error)
        finally:
            is_up.set()

    thread = threading.Thread(target=work, name=f"node {name}")
    thread.start()
    is_up.wait(DEADLINE_S)
    try:
        if not started:
            raise AssertionError(f"node {name} did not start: {failed}")
        yield started[0]
    finally:
        if started and thread.is_alive():
            started[0]._loop.call_soon_threadsafe(stopping[0].set)
        thread.join(DEADLINE_S)
    if failed:
        raise failed[0]
