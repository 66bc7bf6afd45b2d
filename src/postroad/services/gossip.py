"""What nodes that speak TCP to each other tell of themselves and others.

The rows of the tables are kept as they came; `read_*` makes sense of them row by row, so that one
bad row harms only itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .kinds import Kind
from .packet_fields import NODE_ID_LENGTH_MAX, RENAMED, WHOLE_MAX, NodeId, Text

NODES_MAX = 10_000
"""Nodes in one packet."""
CPU_MAX = 100

Port: TypeAlias = Annotated[int, Meta(ge=1, le=65_535)]
Rows: TypeAlias = Annotated[dict[str, Any], Meta(max_length=NODES_MAX)]


class GossipHello(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """The first packet on each connection: where its sender listens."""

    KIND: ClassVar = Kind.GOSSIP_HELLO

    host: Text
    port: Port
    ver: Any
    sender: NodeId


class GossipRequest(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """What the sender knows of all nodes; the answer is what the receiver knows better."""

    KIND: ClassVar = Kind.GOSSIP_REQUEST

    online: Rows | UnsetType = UNSET
    """Node to `[seq, cpuSeq, cpu]`; not set if empty."""
    offline: Rows | UnsetType = UNSET
    """Node to seq; not set if empty."""
    ver: Any
    sender: NodeId


class GossipResponse(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """What the receiver of a request knows better than its sender."""

    KIND: ClassVar = Kind.GOSSIP_RESPONSE

    online: Rows | UnsetType = UNSET
    """Node to `[info, cpuSeq, cpu]`, `[info]` or `[cpuSeq, cpu]`; not set if empty."""
    offline: Rows | UnsetType = UNSET
    """Node to seq; not set if empty."""
    ver: Any
    sender: NodeId


class Known(NamedTuple):
    """What somebody knows of a node that is online."""

    node_id: str
    seq: int
    cpu_seq: int
    cpu: float


class News(NamedTuple):
    """What somebody tells of a node that is online: its body of an INFO, its CPU, or both."""

    node_id: str
    info: Mapping[str, Any] | None
    cpu_seq: int | None
    cpu: float | None


class Gone(NamedTuple):
    """A node that is offline, and the last number known of it."""

    node_id: str
    seq: int


def read_known(packet: GossipRequest) -> Iterator[Known]:
    """The nodes that are online for the sender of a request."""
    for node_id, row in _rows(packet.online):
        if isinstance(row, list | tuple) and len(row) == 3:
            seq, cpu_seq, cpu = _whole(row[0]), _whole(row[1]), _cpu(row[2])
            if seq is not None and cpu_seq is not None and cpu is not None:
                yield Known(node_id, seq, cpu_seq, cpu)


def read_news(packet: GossipResponse) -> Iterator[News]:
    """The nodes that are online for the sender of a response."""
    for node_id, row in _rows(packet.online):
        if isinstance(row, list | tuple) and 1 <= len(row) <= 3:
            news = _read_news(node_id, row)
            if news is not None:
                yield news


def read_gone(packet: GossipRequest | GossipResponse) -> Iterator[Gone]:
    """The nodes that are offline for the sender."""
    for node_id, said in _rows(packet.offline):
        seq = _whole(said)
        if seq is not None:
            yield Gone(node_id, seq)


def _read_news(node_id: str, row: list[Any] | tuple[Any, ...]) -> News | None:
    info = row[0] if len(row) != 2 else None
    if len(row) != 2 and not isinstance(info, Mapping):
        return None
    if len(row) == 1:
        return News(node_id, info, None, None)
    cpu_seq, cpu = _whole(row[-2]), _cpu(row[-1])
    if cpu_seq is None or cpu is None:
        return None if info is None else News(node_id, info, None, None)
    return News(node_id, info, cpu_seq, cpu)


def _rows(said: Rows | UnsetType) -> Iterator[tuple[str, Any]]:
    if isinstance(said, dict):
        for node_id, row in said.items():
            if 0 < len(node_id) <= NODE_ID_LENGTH_MAX and node_id.isprintable():
                yield node_id, row


def _whole(said: Any) -> int | None:
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return int(said) if 0 <= said <= WHOLE_MAX and said == said // 1 else None


def _cpu(said: Any) -> float | None:
    """Per cent; None is 0, as with nodes that have not measured yet."""
    if said is None:
        return 0
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return said if 0 <= said <= CPU_MAX else None
