"""What operations work on: a node that runs, or the store of one that does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from postroad.admin.vitals import vitals_of
from postroad.core.errors import UsageError
from postroad.durable import DurableQueuesAdmin
from postroad.flows.admin import FlowAdmin
from postroad.node import Node

Result = TypeVar("Result")


class Ask(Protocol):
    """Has another node do an operation."""

    def __call__(
        self, member: str, operation: str, params: Mapping[str, Any], /
    ) -> Awaitable[Any]: ...


class Office(Protocol):
    """Where operators come to."""

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def node(self) -> Node:
        """The running node; raises UsageError if it does not run."""

    @property
    def is_running(self) -> bool:
        """Whether it runs."""

    @property
    def queues(self) -> DurableQueuesAdmin:
        """Its durable queues."""

    @property
    def flows(self) -> FlowAdmin:
        """Its flows."""

    async def ask(self, member: str, operation: str, params: Mapping[str, Any]) -> Any:
        """Have another member do an operation, and give what it says."""


class NodeOffice:
    """The office of a node that runs.

    Args:
        node: the node.
        ask: has other nodes do something; without it none is asked.
    """

    is_running = True

    def __init__(self, node: Node, ask: Ask | None = None) -> None:
        self.node = node
        self._ask = ask

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.name

    @property
    def queues(self) -> DurableQueuesAdmin:
        """Its durable queues."""
        return self.node.queues.admin

    @property
    def flows(self) -> FlowAdmin:
        """Its flows."""
        return self.node.flows.admin

    async def ask(self, member: str, operation: str, params: Mapping[str, Any]) -> Any:
        """Have another member do an operation, and give what it says."""
        if self._ask is None:
            raise UsageError(f"node {self.name} asks no others: its admin server does not run")
        return await self._ask(member, operation, params)


class StoreOffice:
    """The office of a node that does not run: its store, open already.

    Args:
        queues: the durable queues in the store.
        flows: likewise; None if they are not to be worked on.
    """

    is_running = False

    def __init__(self, queues: DurableQueuesAdmin, flows: FlowAdmin | None = None) -> None:
        self.queues = queues
        self._flows = flows

    @property
    def name(self) -> str:
        """The name of the node whose store it is."""
        return self.queues.store.owner

    @property
    def node(self) -> Node:
        """There is none."""
        raise UsageError(
            "this needs a running node: start it with `postroad node start`, and leave out --store"
        )

    @property
    def flows(self) -> FlowAdmin:
        """Its flows."""
        if self._flows is None:
            raise UsageError("the flows of this store are not open")
        return self._flows

    async def ask(self, member: str, operation: str, params: Mapping[str, Any]) -> Any:
        """There is nobody to ask."""
        return self.node


def mail_changed(office: Office) -> None:
    """An operator has changed something about the mail: whoever looks next shall see it."""
    if office.is_running:
        vitals_of(office.node).forget_mail()


async def change_mail(
    office: Office,
    find: Callable[[Office, str], Awaitable[object]],
    name: str,
    change: Callable[[str], Awaitable[Result]],
) -> Result:
    """Change something about a queue or a peer that exists.

    Args:
        find: raises NotFound if it does not.
        name: of the queue or the peer.
        change: what to do with it; returns what this returns.
    """
    await find(office, name)
    result = await change(name)
    mail_changed(office)
    return result
