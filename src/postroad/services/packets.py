"""The packets of the Moleculer protocol, version 5, as structs that are also their wire form.

Fields are in the order in which a node of the original system writes them, so that a struct can
be encoded as it is. A field that is `UNSET` is not written. The types are the strict form; what
else is accepted from others is in `packet_form`.

`ver` has no default: a packet without one must not pass for one of this version.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .gossip import GossipHello, GossipRequest, GossipResponse
from .kinds import Kind
from .packet_fields import RENAMED, Id, Milliseconds, Name, NodeId, Object, Text, Whole

GROUPS_MAX = 1_000
"""Groups of one event; nodes of the original system repeat a group for each of its patterns."""

Cpu: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
Groups: TypeAlias = Annotated[list[Name], Meta(max_length=GROUPS_MAX)]


class Discover(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """Who is there? Everybody, or the node it is sent to, answers with an Info."""

    KIND: ClassVar = Kind.DISCOVER

    ver: Any
    sender: NodeId


class Info(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """What a node is and offers.

    The body is kept as it came: `info_form.read_info(to_wire(packet))` makes sense of it entry by
    entry, so that one bad service harms only itself.
    """

    KIND: ClassVar = Kind.INFO

    services: list[Any]
    ip_list: Any = []
    hostname: Any = ""
    client: Any = {}
    config: Any = {}
    instance_id: Any = UNSET
    metadata: Any = {}
    seq: Any = UNSET
    port: Any = UNSET
    ver: Any
    sender: NodeId


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """I am alive. `seq` and `instance_id` are rarely told; whoever gets them compares them."""

    KIND: ClassVar = Kind.HEARTBEAT

    cpu: Cpu | None = None
    """How busy the machine is, in per cent."""
    seq: Whole | UnsetType = UNSET
    instance_id: Text | UnsetType = UNSET
    ver: Any
    sender: NodeId


class Request(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """Call an action; or a part of the stream that belongs to a call."""

    KIND: ClassVar = Kind.REQUEST

    id: Id
    """Of the call; all parts of its streams, and its responses, have the same."""
    action: Name
    params: Any = {}
    meta: Object = {}
    headers: Object = {}
    timeout: Milliseconds | None = None
    """Time for the call; 0 is no limit, None leaves it to the receiver."""
    level: Whole = 1
    tracing: bool | None = None
    parent_id: Text | None = None
    request_id: Text | None = None
    caller: Text | None = None
    stream: bool = False
    """Whether more of a stream follows."""
    seq: Whole | UnsetType = UNSET
    """The number of this part of a stream, of which every part has one; the opening one has 0."""
    ver: Any
    sender: NodeId


class Response(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """The answer to a Request; or a part of the stream that is the answer."""

    KIND: ClassVar = Kind.RESPONSE

    id: Id
    meta: Object = {}
    headers: Object | None = {}
    """None if the request failed before anything was known of it."""
    success: bool
    data: Any = None
    error: Object | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    seq: Whole | UnsetType = UNSET
    ver: Any
    sender: NodeId


class Event(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """Something happened. Without `broadcast`, one handler of each group gets it."""

    KIND: ClassVar = Kind.EVENT

    id: Id | None = None
    event: Name
    data: Any = None
    groups: Groups | UnsetType = UNSET
    """Only these groups; not set for all."""
    broadcast: bool = False
    meta: Object = {}
    headers: Object = {}
    level: Whole = 1
    tracing: bool | None = None
    parent_id: Text | None = None
    request_id: Text | None = None
    caller: Text | None = None
    need_ack: bool | None = None
    """Whether an EventAck is wanted; always None from nodes of the original system."""
    ver: Any
    sender: NodeId


class EventAck(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """The handler of a group is done with an event. Only nodes of this package know it."""

    KIND: ClassVar = Kind.EVENT_ACK

    id: Id
    success: bool
    group: Name | None = None
    error: Object | UnsetType = UNSET
    ver: Any
    sender: NodeId


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """How far a stream is. Only nodes of this package know it; either end of a stream tells it."""

    KIND: ClassVar = Kind.STREAM_PROGRESS

    id: Id
    """Of the call that the stream belongs to."""
    is_request: bool
    """Whether it is the stream of the request, and not that of the response."""
    sent: Whole | UnsetType = UNSET
    """From the end that sends: the last part that it sent, although there is nothing new."""
    arrived: Whole | UnsetType = UNSET
    """From the end that reads: the last part that came, with all before it."""
    received: Whole | UnsetType = UNSET
    """From the end that reads: the last part that was read."""
    is_cancelled: bool = False
    """From the end that reads: nobody wants the rest."""
    ver: Any
    sender: NodeId


class Ping(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """Are you there? The answer is a Pong."""

    KIND: ClassVar = Kind.PING

    time: Milliseconds
    """Of the sender's clock."""
    id: Id | None = None
    ver: Any
    sender: NodeId


class Pong(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """I am. It has what the Ping had, and when that arrived by the clock of its receiver."""

    KIND: ClassVar = Kind.PONG

    time: Milliseconds
    id: Id | None = None
    arrived: Milliseconds
    ver: Any
    sender: NodeId


class Disconnect(msgspec.Struct, frozen=True, kw_only=True, rename=RENAMED):
    """I am gone. Nodes of this package tell which life of theirs ends."""

    KIND: ClassVar = Kind.DISCONNECT

    instance_id: Text | UnsetType = UNSET
    ver: Any
    sender: NodeId


Packet: TypeAlias = (
    Discover
    | Info
    | Heartbeat
    | Request
    | Response
    | Event
    | EventAck
    | StreamProgress
    | Ping
    | Pong
    | Disconnect
    | GossipHello
    | GossipRequest
    | GossipResponse
)

PACKETS: dict[Kind, type[Packet]] = {
    it.KIND: it
    for it in (
        Discover, Info, Heartbeat, Request, Response, Event, EventAck, StreamProgress, Ping, Pong,
        Disconnect, GossipHello, GossipRequest, GossipResponse,
    )
}  # fmt: skip
"""The class of each kind."""
