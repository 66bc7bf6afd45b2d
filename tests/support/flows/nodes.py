"""Nodes with flows over real sockets and real stores, which can be stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from postroad.durable import DurableQueuesConfig, SqliteStore, Store
from postroad.flows import (
    FlowDefinition,
    FlowHandle,
    FlowsConfig,
    FlowService,
    FlowStatus,
    FlowView,
)
from postroad.flows.admin import load_flow_state
from postroad.flows.machine.state import FlowState
from postroad.net import Address
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.mail_pairs import QUICK, Station, running_station

P = ParamSpec("P")
R = TypeVar("R")

Definitions = tuple[FlowDefinition[Any, Any], ...]


class FlowNode:
    """A node with mail and flows.

    Attributes:
        station: its mail.
        flows: those of the last start.
    """

    station: Station
    flows: FlowService

    def __init__(
        self,
        name: str,
        make_store: Callable[[], Store],
        definitions: Definitions,
        config: FlowsConfig,
        mail_config: DurableQueuesConfig = QUICK,
    ) -> None:
        self.name = name
        self._make_store = make_store
        self._definitions = definitions
        self.config = config
        self._mail_config = mail_config
        self._stack = AsyncExitStack()
        # The same after every start, so that the others need not look for it.
        self._bind: Address | str = "127.0.0.1:0"
        self._peers: tuple[Station, ...] = ()

    async def start(self, *peers: Station) -> None:
        """Start mail and flows."""
        self._peers = peers
        running = running_station(
            self.name, self._make_store(), *peers, bind=self._bind, config=self._mail_config
        )
        self.station = await self._stack.enter_async_context(running)
        self._bind = self.station.address
        self._stack.push_async_callback(self.stop_flows)
        await self.start_flows()

    async def start_flows(self, *definitions: FlowDefinition[Any, Any]) -> None:
        """Start flows, with other code if some is given."""
        self._definitions = definitions or self._definitions
        self.flows = FlowService(self.station.mail, self._definitions, self.config)
        await self.flows.start()

    async def stop_flows(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.flows.stop()

    async def stop(self) -> None:
        """Stop everything in good order."""
        await self._stack.aclose()

    async def restart_flows(self, *definitions: FlowDefinition[Any, Any]) -> None:
        """Stop flows and start them again, with other code if some is given."""
        await self.stop_flows()
        await self.start_flows(*definitions)

    async def restart(self) -> None:
        """Stop everything and start it again."""
        await self.stop()
        await self.start(*self._peers)

    def meet(self, *peers: Station) -> None:
        """Learn where peers are, for good."""
        self._peers = peers
        self.station.meet(*peers)

    async def begin(
        self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> FlowHandle[R]:
        return await self.flows.start_flow(definition, *args, **kwargs)

    async def run(self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Begin a flow and wait for its result, but not for ever."""
        handle = await self.flows.start_flow(definition, *args, **kwargs)
        return await self._result(handle)

    async def result(self, id: str) -> Any:
        """The result of a flow, whoever began it."""
        return await self._result(await self.flows.get_handle(id))

    async def _result(self, handle: FlowHandle[R]) -> R:
        try:
            return await handle.result(DEADLINE_S)
        except TimeoutError:
            if (view := await self.flows.admin.show(handle.id)).ended_at is not None:
                raise
            history = await self.flows.admin.history(handle.id)
            raise AssertionError(f"{handle!r} does not end: {view}, {history}") from None

    async def state_of(self, id: str) -> FlowState:
        """The state of a flow in the store."""
        return await load_flow_state(self.station.mail.store, id)

    async def until(self, id: str, status: FlowStatus) -> FlowView:
        """Wait until a flow is where it is meant to be, in the store too."""

        async def is_there() -> bool:
            views = await self.flows.admin.list(status=status)
            return id in [view.id for view in views]

        await eventually(is_there, f"flow {id} is {status}")
        return await self.flows.admin.show(id)

    async def until_listed(
        self, name: str, status: FlowStatus | None = None, count: int = 1
    ) -> list[FlowView]:
        """Flows of a name, the oldest first, when there are so many."""
        views: list[FlowView] = []

        async def are_there() -> bool:
            views[:] = reversed(await self.flows.admin.list(status, name))
            return len(views) == count

        await eventually(are_there, f"{count} flows {name} are {status or 'there'}")
        return views

    async def until_steps(self, id: str, count: int) -> None:
        """Wait until so many steps of a flow are recorded."""

        async def are_there() -> bool:
            return len(await self.flows.admin.history(id)) >= count

        await eventually(are_there, f"flow {id} has {count} steps")

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement finds in the store."""
        async with self.station.mail.transaction() as tx:
            return [tuple(row) for row in await tx.execute(statement)]


class FlowNodes:
    """Starts nodes as tests want them, and stops them at the end.

    Attributes:
        config: of the flows of all nodes.
    """

    def __init__(
        self,
        directory: Path,
        config: FlowsConfig,
        store_of: Callable[[str], Store] | None = None,
    ) -> None:
        """Stores are files in `directory`, unless `store_of` opens that of a node."""
        self._store_of = store_of or (lambda name: SqliteStore(directory / f"{name}.db"))
        self.config = config
        self.nodes: list[FlowNode] = []

    async def start(
        self,
        name: str,
        *definitions: FlowDefinition[Any, Any],
        make_store: Callable[[], Store] | None = None,
        mail_config: DurableQueuesConfig = QUICK,
        **settings: Any,
    ) -> FlowNode:
        """Start a node that knows all that were started before, and they it."""
        node = FlowNode(
            name,
            make_store or partial(self._store_of, name),
            definitions,
            msgspec.structs.replace(self.config, **settings),
            mail_config,
        )
        self.nodes.append(node)
        await node.start(*(other.station for other in self.nodes if other is not node))
        for other in self.nodes:
            other.meet(*(node.station for node in self.nodes if node is not other))
        return node

    async def pair(
        self, *definitions: FlowDefinition[Any, Any], **settings: Any
    ) -> tuple[FlowNode, FlowNode]:
        """Nodes alpha and beta, which know the same flows."""
        alpha = await self.start("alpha", *definitions, **settings)
        return alpha, await self.start("beta", *definitions, **settings)

    async def begin(
        self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[FlowNode, FlowHandle[R]]:
        """A node alpha that knows one flow, and that flow, begun."""
        alpha = await self.start("alpha", definition)
        return alpha, await alpha.begin(definition, *args, **kwargs)

    async def run(self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a flow returns at a node alpha that knows no other."""
        alpha = await self.start("alpha", definition)
        return await alpha.run(definition, *args, **kwargs)

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


class Hanging:
    """Functions of steps that never end by themselves.

    Attributes:
        begun: the names of those that were called.
        ended: the names of those that were cancelled.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def hang(self, name: str = "function") -> None:
        self.begun.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(name)


class Crowd:
    """Functions of steps that run until as many are at work as may be at the same time.

    Attributes:
        most: how many have been at work together.
    """

    def __init__(self, allowed: int) -> None:
        self.most = 0
        self._allowed = allowed
        self._running = 0
        self._is_full = asyncio.Event()

    async def work(self, number: int) -> int:
        self._running += 1
        self.most = max(self.most, self._running)
        if self._running >= self._allowed:
            self._is_full.set()
        await self._is_full.wait()
        # Whoever should not come has time to.
        await asyncio.sleep(0.005)
        self._running -= 1
        return number
