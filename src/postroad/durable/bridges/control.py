"""Control messages between a node and a bridge manager in another process.

The node sends to `internal.bridge.control` and listens to `internal.bridge.notify`, the manager
does the reverse. A manager that starts asks for a snapshot, a node that starts sends one: so it
does not matter which of them comes first.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.core.errors import MalformedPayloadError


class BridgeRoute(msgspec.Struct, frozen=True):
    """An outbound queue, and where it leads."""

    queue: str
    target: str
    """Address of the peer."""
    peer: str


class BridgeSnapshot(msgspec.Struct, frozen=True, tag="snapshot", rename={"routes": "entries"}):
    """Node to bridge: all queues that lead somewhere."""

    node: str
    inbox: str
    routes: list[BridgeRoute]


class BridgeSnapshotRequest(msgspec.Struct, frozen=True, tag="snapshot-request"):
    """Bridge to node: it has started and knows nothing."""

    bridge: str


class BridgeCreate(msgspec.Struct, frozen=True, tag="create", rename={"route": "entry"}):
    """Node to bridge: messages wait for a peer, or its address has changed."""

    node: str
    route: BridgeRoute


class BridgeDelete(msgspec.Struct, frozen=True, tag="delete"):
    """Node to bridge: the peer has left; its messages wait."""

    node: str
    queue: str


class BridgeStatusRequest(msgspec.Struct, frozen=True, tag="health-check"):
    """Node to bridge: how are things?"""

    request: int


class BridgeStatus(msgspec.Struct, frozen=True, rename={"state": "phase", "last_error": "trouble"}):
    """One bridge at one moment."""

    peer: str
    target: str
    state: str
    sent: int
    """Messages accepted by the peer since the bridge was made."""
    last_error: str | None
    """What went wrong last."""


class BridgeManagerStatus(msgspec.Struct, frozen=True, tag="health"):
    """Bridge to node: this is how."""

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
    """Read what a node sent; raises MalformedPayloadError."""
    try:
        message: BridgeCommand = _to_bridge.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"invalid bridge command: {error}") from error
    return message


def decode_bridge_report(payload: bytes) -> BridgeReport:
    """Read what a bridge sent; raises MalformedPayloadError."""
    try:
        message: BridgeReport = _to_node.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"invalid bridge report: {error}") from error
    return message
