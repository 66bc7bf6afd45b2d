"""What a node and its bridge manager say to each other, wherever the manager runs.

The node sends to `internal.bridge.control` and listens to `internal.bridge.notify`, the manager
does the reverse. A manager that starts asks for a snapshot, a node that starts sends one: so it
does not matter which of them comes first.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.core.errors import MalformedPayloadError


class BridgeEntry(msgspec.Struct, frozen=True):
    """An outbound queue, and where it leads."""

    queue: str
    target: str
    """Address of the peer."""
    peer: str


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """Node to bridge: all queues that lead somewhere."""

    node: str
    inbox: str
    entries: list[BridgeEntry]


class SnapshotRequest(msgspec.Struct, frozen=True, tag="snapshot-request"):
    """Bridge to node: it has started and knows nothing."""

    bridge: str


class Create(msgspec.Struct, frozen=True, tag="create"):
    """Node to bridge: there is mail for a peer, or its address is a new one."""

    node: str
    entry: BridgeEntry


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Node to bridge: the peer has gone; its mail waits."""

    node: str
    queue: str


class HealthCheck(msgspec.Struct, frozen=True, tag="health-check"):
    """Node to bridge: how are things?"""

    request: int


class BridgeHealth(msgspec.Struct, frozen=True):
    """One bridge at one moment."""

    peer: str
    target: str
    phase: str
    sent: int
    """Messages accepted by the peer since the bridge was made."""
    trouble: str | None
    """What went wrong last."""


class Health(msgspec.Struct, frozen=True, tag="health"):
    """Bridge to node: this is how."""

    request: int
    bridge: str
    token: int
    bridges: list[BridgeHealth]


ToBridge: TypeAlias = Snapshot | Create | Delete | HealthCheck
ToNode: TypeAlias = SnapshotRequest | Health

encode = msgspec.msgpack.Encoder().encode
_to_bridge = msgspec.msgpack.Decoder(ToBridge)
_to_node = msgspec.msgpack.Decoder(ToNode)


def decode_for_bridge(payload: bytes) -> ToBridge:
    """Read what a node sent; raises MalformedPayloadError."""
    try:
        message: ToBridge = _to_bridge.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"no message to a bridge: {error}") from error
    return message


def decode_for_node(payload: bytes) -> ToNode:
    """Read what a bridge sent; raises MalformedPayloadError."""
    try:
        message: ToNode = _to_node.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"no message to a node: {error}") from error
    return message
