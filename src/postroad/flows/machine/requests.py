"""Requests to flows of this node, of transactions and of other flows, and the ends of children."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

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
