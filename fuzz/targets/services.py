"""Services: packets of other nodes in each serializer, and the topics they come by."""

from __future__ import annotations

from functools import partial

import msgspec

from fuzz.target import Target, prefixes, require
from postroad.core.errors import MalformedPayloadError
from postroad.services.caching.redis import RedisStore
from postroad.services.kinds import Kind
from postroad.services.packet_form import from_wire
from postroad.services.serializers import Serializer, make_serializer
from postroad.services.topics import Topics

_KINDS = tuple(Kind)
_TOPICS = Topics("node-1", "ns")
_COMMON = {"ver": "5", "sender": "node-2"}
_PACKETS = [
    from_wire(
        Kind.REQUEST, {**_COMMON, "id": "1", "action": "math.add", "params": {"a": [1, 2.5]}}
    ),
    from_wire(Kind.RESPONSE, {**_COMMON, "id": "1", "success": True, "data": "three"}),
    from_wire(Kind.EVENT, {**_COMMON, "event": "user.created", "data": None, "groups": ["mail"]}),
    from_wire(Kind.HEARTBEAT, {**_COMMON, "cpu": 12}),
    from_wire(Kind.PING, {**_COMMON, "id": "2", "time": 1_700_000_000_000}),
    from_wire(Kind.DISCONNECT, _COMMON),
    from_wire(Kind.STREAM_PROGRESS, {**_COMMON, "id": "3", "isRequest": True, "received": 7}),
]


def check_packet(serializer: Serializer, data: bytes) -> None:
    """Any bytes after a kind are such a packet or malformed, cut off or not."""
    for it in (*prefixes(data), data):
        if not it:
            continue
        kind = _KINDS[it[0] % len(_KINDS)]
        try:
            packet = serializer.deserialize(kind, it[1:])
        except MalformedPayloadError:
            continue
        require(packet.KIND is kind, f"a {kind} became a {packet.KIND}")


def check_topic(data: bytes) -> None:
    """Any text is a topic or malformed."""
    try:
        _TOPICS.parse(data.decode(errors="replace"))
    except MalformedPayloadError:
        return


def _target(name: str) -> Target:
    serializer = make_serializer(name)
    seeds = [
        bytes([_KINDS.index(packet.KIND)]) + serializer.serialize(packet) for packet in _PACKETS
    ]
    return Target(f"services-{name}", partial(check_packet, serializer), seeds + _ODD[name])


# Numbers beyond 64 bits, and what is read although it is not in the strict form.
_LENIENT = {"ver": "5", "sender": "node-2", "id": 7, "success": "yes"}
_ODD = {
    "json": [bytes([_KINDS.index(Kind.RESPONSE)]) + msgspec.json.encode(_LENIENT)],
    "msgpack": [bytes([_KINDS.index(Kind.RESPONSE)]) + msgspec.msgpack.encode(_LENIENT)],
    "cbor": [
        bytes([_KINDS.index(Kind.PING)]) + bytes.fromhex("a1 64 74696d65 c2 49 010000000000000000")
    ],
}


def check_cached(data: bytes) -> None:
    """What is in a cache that others write to is a value, or makes no sense."""
    for cache in _CACHES:
        try:
            cache.unpack(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MalformedPayloadError):
            continue


_CACHES = [RedisStore(serializer=name) for name in ("JSON", "MsgPack")]


TARGETS = [
    *(_target(name) for name in ("json", "msgpack", "cbor")),
    Target("services-cached", check_cached, [b'{"a": [1, 2]}', b"\x81\xa1a\x01"]),
    Target("services-topic", check_topic, [it.encode() for it in _TOPICS.subscriptions()]),
]
