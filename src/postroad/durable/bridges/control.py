"""Control messages between a node and a bridge manager in another process.

The node sends to `internal.bridge.control` and listens to `internal.bridge.notify`, the manager
does the reverse. A manager that starts requests a snapshot, a node that starts sends one: so they
may start in any order.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.core.errors import MalformedPayloadError


class BridgeRoute(msgspec.Struct, frozen=True):
    """An outbound queue, and the address of its peer."""

    queue: str
    target: str
    """Address of the peer."""
    peer: str


class BridgeSnapshot(msgspec.Struct, frozen=True, tag="snapshot", rename={"routes": "entries"}):
    """Node to manager: all routes."""

    node: str
    inbox: str
    routes: list[BridgeRoute]


class BridgeSnapshotRequest(msgspec.Struct, frozen=True, tag="snapshot-request"):
    """Manager to node: it has started and needs a snapshot."""

    bridge: str


class BridgeCreate(msgspec.Struct, frozen=True, tag="create", rename={"route": "entry"}):
    """Node to manager: a peer has new messages, or another address."""

    node: str
    route: BridgeRoute


class BridgeDelete(msgspec.Struct, frozen=True, tag="delete"):
    """Node to manager: the peer has left; its messages wait."""

    node: str
    queue: str


class BridgeStatusRequest(msgspec.Struct, frozen=True, tag="health-check"):
    """Node to manager: report the status of all bridges."""

    request: int


class BridgeStatus(msgspec.Struct, frozen=True, rename={"state": "phase", "last_error": "trouble"}):
    """The status of one bridge."""

    peer: str
    target: str
    state: str
    sent: int
    """Messages accepted by the peer since the bridge was created."""
    last_error: str | None
    """The last error."""


class BridgeManagerStatus(msgspec.Struct, frozen=True, tag="health"):
    """Manager to node: the status of all bridges."""

    request: int
    bridge: str
    token: int
    bridges: list[BridgeStatus]


BridgeCommand: TypeAlias = BridgeSnapshot | BridgeCreate | BridgeDelete | BridgeStatusRequest
BridgeReport: TypeAlias = BridgeSnapshotRequest | BridgeManagerStatus

encode = msgspec.msgpack.Encoder().encode
_to_bridge = msgspec.msgpack.Decoder(BridgeCommand)
_to_node = msgspec.msgpack.Decoder(BridgeReport)


def decode_bridge_command(payload: bytes) -> BridgeCommand:
    """Decode a command of a node; raises MalformedPayloadError."""
    try:
        message: BridgeCommand = _to_bridge.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"invalid bridge command: {error}") from error
    return message


def decode_bridge_report(payload: bytes) -> BridgeReport:
    """Decode a report of a manager; raises MalformedPayloadError."""
    try:
        message: BridgeReport = _to_node.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"invalid bridge report: {error}") from error
    return message
