"""What operations work on: a node that runs, or the store of one that does not."""

from __future__ import annotations

from typing import Protocol

from postroad.core.errors import UsageError
from postroad.durable import StoreOperations
from postroad.flows.operations import FlowOperations
from postroad.node import Node


class Office(Protocol):
    """Where operators come to."""

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def node(self) -> Node:
        """The running node; raises UsageError if it does not run."""

    @property
    def mail(self) -> StoreOperations:
        """Its mail."""

    @property
    def flows(self) -> FlowOperations:
        """Its flows."""


class NodeOffice:
    """The office of a node that runs."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.name

    @property
    def mail(self) -> StoreOperations:
        """Its mail."""
        return self.node.mail

    @property
    def flows(self) -> FlowOperations:
        """Its flows."""
        return self.node.flows


class StoreOffice:
    """The office of a node that does not run: its store, open already.

    Args:
        mail: what the store holds.
        flows: likewise; None if they are not to be worked on.
    """

    def __init__(self, mail: StoreOperations, flows: FlowOperations | None = None) -> None:
        self.mail = mail
        self._flows = flows

    @property
    def name(self) -> str:
        """The name of the node whose store it is."""
        return self.mail.store.owner

    @property
    def node(self) -> Node:
        """There is none."""
        raise UsageError(
            "this needs a running node: start it with `postroad node start`, and leave out --store"
        )

    @property
    def flows(self) -> FlowOperations:
        """Its flows."""
        if self._flows is None:
            raise UsageError("the flows of this store are not open")
        return self._flows
