"""Requests to flows of this node, of transactions and of other flows, and the ends of children.

The commands by which flow code makes them send them with the commit that records the command.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeAlias

import msgspec

from postroad.core.errors import UsageError
from postroad.flows.machine import values
from postroad.flows.machine.commands import FlowCommand, WaitForSignal
from postroad.flows.machine.history import CommandKind, HistoryEntry
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.values import RecordedError

GENERATED_ID_PREFIX = "tx:"
"""The prefix of generated client ids."""


class StartRequest(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Start a flow, unless one was started with this client id."""

    client_id: str
    flow: str
    arguments: bytes
    parent: str = ""
    """The id of the flow that waits for its end."""


class SignalRequest(msgspec.Struct, frozen=True, array_like=True, tag="signal"):
    """Send a signal to a flow."""

    flow: str
    """The client id of the flow, or its own id."""
    name: str
    payload: bytes


class CancelRequest(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Cancel a flow, unless it has ended."""

    flow: str
    """The client id of the flow."""
    reason: str


class ChildOutcome(msgspec.Struct, frozen=True, array_like=True):
    """How a child ended: with a result or an error."""

    result: bytes | None
    error: RecordedError | None = None


class ChildEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """Tell a flow that its child has ended, unless it has ended itself."""

    parent: str
    child: str
    """The client id of the child."""
    outcome: ChildOutcome


FlowRequest: TypeAlias = StartRequest | SignalRequest | CancelRequest | ChildEnded


def child_signal(child: str) -> str:
    """Return the name of the signal that tells of the end of a child."""
    return f"end of {child}"


class RequestCommand(FlowCommand):
    """A request to another flow of this node, sent with the commit that records it."""

    __slots__ = ("size",)
    is_immediate = True

    def __init__(self, name: str, digest: bytes, size: int) -> None:
        super().__init__(name, digest)
        self.size = size

    @abstractmethod
    def make_request(self, parent: FlowState) -> FlowRequest:
        """Return what is sent."""

    def check_size(self, payload_max: int) -> None:
        """Raise UsageError if it takes more bytes than `payload_max`."""
        if self.size > payload_max:
            raise UsageError(
                f"cannot {self.kind} flow {self.name} with {self.size} bytes: the limit is "
                f"{payload_max}; raise message_bytes_max, or pass a reference"
            )


class StartFlow(RequestCommand):
    """Start another flow.

    Attributes:
        is_child: whether its end is told to the flow that starts it.
    """

    __slots__ = ("arguments", "client_id", "is_child")
    kind = CommandKind.START

    def __init__(self, name: str, digest: bytes, arguments: bytes, *, is_child: bool) -> None:
        super().__init__(name, digest, len(arguments))
        self.arguments = arguments
        self.is_child = is_child

    def make_request(self, parent: FlowState) -> StartRequest:
        place = ".".join(map(str, self.position))
        id = format_flow_id(parent.id)
        client_id = f"{GENERATED_ID_PREFIX}{id}.{parent.run_number}.{place}"
        return StartRequest(client_id, self.name, self.arguments, id if self.is_child else "")

    def decode_result(self, value: bytes | None) -> str:
        assert value is not None
        started: StartedFlow = values.decode_value(value, StartedFlow)
        return started.client_id


class StartedFlow(msgspec.Struct, frozen=True, array_like=True):
    """What is recorded of the start of a flow."""

    client_id: str
    is_child: bool


def update_children(children: dict[str, str], entry: HistoryEntry) -> None:
    """Add the child that an entry started, or remove the one whose end was waited for."""
    if entry.kind is CommandKind.START and entry.value is not None:
        started = values.decode_value(entry.value, StartedFlow)
        if started.is_child:
            children[child_signal(started.client_id)] = started.client_id
    elif entry.kind is CommandKind.SIGNAL and entry.value is not None:
        children.pop(entry.name, None)


class CancelFlow(RequestCommand):
    """Cancel another flow."""

    __slots__ = ("client_id", "reason")
    kind = CommandKind.CANCEL

    def __init__(self, client_id: str, reason: str) -> None:
        super().__init__(client_id, b"", len(reason.encode()))
        self.client_id = client_id
        self.reason = reason

    def make_request(self, parent: FlowState) -> CancelRequest:
        return CancelRequest(self.client_id, self.reason)


class WaitForChild(WaitForSignal):
    """Wait for the end of a child."""

    __slots__ = ()

    def __init__(self, child: str, deadline_ms: int | None = None) -> None:
        super().__init__(child_signal(child), ChildOutcome, deadline_ms)
