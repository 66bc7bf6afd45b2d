"""What is known of each node, and what a registry tells of changes."""

from __future__ import annotations

import math

import msgspec

from .doubts import Doubt
from .schema import NodeInfo

NEVER = -math.inf


class NodeRecord:
    """One node, this one included. Only the registry changes it."""

    def __init__(self, id: str, info: NodeInfo, now: float, *, is_local: bool = False) -> None:
        self.id = id
        self.info = info
        self.is_local = is_local
        self.is_available = True
        # That of the info, until the node is lost: then it is one more, so that only news count.
        self.seq = info.seq
        self.cpu: float | None = None
        self.cpu_seq = 0
        self.last_seen = now
        self.offline_since: float | None = None
        # When it last asked who is there, as nodes do when a life begins.
        self.asked_at = NEVER
        # When it last confirmed what is known of it; NEVER if that is in doubt.
        self.verified_at = now
        self.is_proven = is_local
        """Whether it has answered a question that only it was asked."""
        self.doubt: Doubt | None = None
        """What somebody said in its name, while it is asked itself."""

    @property
    def is_doubtful(self) -> bool:
        """Whether others are to be preferred for the moment."""
        return self.doubt is not None

    @property
    def instance_id(self) -> str:
        """The life it is in."""
        return self.info.instance_id

    @property
    def hostname(self) -> str:
        """The host it says it is on; nodes that tell none are on hosts of their own."""
        return self.info.hostname or self.id

    def __repr__(self) -> str:
        state = "online" if self.is_available else "offline"
        return f"<Node {self.id}: {state}, seq {self.seq}, {len(self.info.services)} services>"


class SendDiscover(msgspec.Struct, frozen=True):
    """To do: ask a node for its INFO."""

    node_id: str


class VerifyNode(msgspec.Struct, frozen=True):
    """To do: ask a node for its INFO and whether it is there, as something was said in its name."""

    node_id: str


class ProveNode(msgspec.Struct, frozen=True):
    """To do: ask a node that is not known whether it is there; there are many that may not be."""

    node_id: str
    info: NodeInfo


class DoubtOver(msgspec.Struct, frozen=True):
    """A node was asked, and is what it was: what was said in its name is not so."""

    node_id: str


class NodeConnected(msgspec.Struct, frozen=True):
    """A node came, or came back."""

    node_id: str
    is_reconnected: bool


class NodeUpdated(msgspec.Struct, frozen=True):
    """A node told something new.

    After a restart nobody will answer what was asked of its former life.
    """

    node_id: str
    is_restarted: bool
    alive_since: float = math.inf
    """After a restart: what was asked since then was asked of the new life; infinity if nothing."""


class NodeDisconnected(msgspec.Struct, frozen=True):
    """A node left, or is lost: what was asked of it will not be answered."""

    node_id: str
    is_unexpected: bool


class NodeForgotten(msgspec.Struct, frozen=True):
    """A node was offline for so long that it is no longer listed."""

    node_id: str


class NodeRefused(msgspec.Struct, frozen=True):
    """A node is not taken in, because there are too many."""

    node_id: str


class ServicesChanged(msgspec.Struct, frozen=True):
    """Services came, went or changed, here or elsewhere."""

    is_local: bool


class EntriesRefused(msgspec.Struct, frozen=True):
    """Parts of what a node said make no sense and are left out; the rest is taken."""

    node_id: str
    problems: tuple[str, ...]


class NodeConflict(msgspec.Struct, frozen=True):
    """Another process uses the name of this node: one of the two must be renamed or stopped."""

    node_id: str
    instance_id: str
    hostname: str = ""
    ip_list: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" at {self.hostname or ', '.join(self.ip_list) or 'an unknown host'}"
        return (
            f"another process{where} uses the node name {self.node_id!r} "
            f"(instance {self.instance_id}); give one of them another name, or stop it"
        )


Change = (
    SendDiscover
    | VerifyNode
    | ProveNode
    | DoubtOver
    | NodeConnected
    | NodeUpdated
    | NodeDisconnected
    | NodeForgotten
    | NodeRefused
    | ServicesChanged
    | EntriesRefused
    | NodeConflict
)
