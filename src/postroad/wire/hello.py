"""The hello of version 3: checks and encoding (docs/wire-protocol.md, 3.2).

The body consists of tagged fields, so that later versions can add some: u16 tag, u16 length, value,
big endian. Unknown tags are skipped, missing ones have defaults, the last of repeated ones counts.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection
from typing import Any

import msgspec

from postroad.core.errors import (
    ConfigError,
    DuplicateNameHandshakeError,
    HandshakeRejectedError,
    MalformedFrameError,
)
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.core.names import Address, validate_node_name
from postroad.wire.frames import HelloFrame


def check_peer_hello(
    ours: HelloFrame, theirs: HelloFrame, certificate_names: Collection[str] | None
) -> None:
    """Raise HandshakeRejectedError if cluster, certificate name or use of a secret differ."""
    if theirs.cluster != ours.cluster:
        raise HandshakeRejectedError(
            f"the peer belongs to cluster {theirs.cluster!r}, this node to {ours.cluster!r}"
        )
    if certificate_names is not None and theirs.name not in certificate_names:
        names = ", ".join(sorted(certificate_names)) or "no node"
        raise HandshakeRejectedError(
            f"node {theirs.name!r} has a certificate for {names}; its name must be in it"
        )
    if bool(theirs.nonce) is not bool(ours.nonce):
        (owner, other) = (ours, theirs) if ours.nonce else (theirs, ours)
        raise HandshakeRejectedError(
            f"node {owner.name!r} at {owner.address} requires the cluster secret "
            f"and node {other.name!r} at {other.address} has none: set node.secret there"
        )


def check_duplicate_name(ours: HelloFrame, theirs: HelloFrame) -> None:
    """Raise DuplicateNameHandshakeError if the peer is another process with this node's name."""
    if theirs.name == ours.name and theirs.incarnation != ours.incarnation:
        raise DuplicateNameHandshakeError(
            f"another live node at {theirs.address} is named {ours.name!r}",
            host=theirs.address.host,
            port=theirs.address.port,
            incarnation=theirs.incarnation,
            is_member=theirs.is_member,
        )


def check_tunnel_hello(server: HelloFrame) -> None:
    """Raise HandshakeRejectedError if the server has no role in cells: it ignores tag 13 (3.6)."""
    if not server.role:
        raise HandshakeRejectedError(
            f"node {server.name!r} accepts no tunnels: it has no role in the cells layer"
        )


_FIELD = struct.Struct(">HH")
_FLAG = struct.Struct(">?")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")

# Limit of a role or a zone.
PART_BYTES_MAX = 255
NONCE_BYTES = 32


class HelloField(enum.IntEnum):
    """Field tags of a hello."""

    CLUSTER = 1
    NAME = 2
    INCARNATION = 3
    HOST = 4
    PORT = 5
    FRAME_BYTES_MAX = 6
    REQUESTS_PENDING_MAX = 7
    HEARTBEAT_TIMEOUT_MS = 8
    COMPRESSIONS = 9
    MEMBER = 10
    ROLE = 11
    ZONE = 12
    TUNNEL = 13
    TRACES = 14
    NONCE = 15


# The attribute of each field, and the layout of its value; None is text.
_LAYOUTS: dict[HelloField, tuple[str, struct.Struct | None]] = {
    HelloField.CLUSTER: ("cluster", None),
    HelloField.NAME: ("name", None),
    HelloField.INCARNATION: ("incarnation", _U64),
    HelloField.HOST: ("host", None),
    HelloField.PORT: ("port", _U16),
    HelloField.FRAME_BYTES_MAX: ("frame_bytes_max", _U32),
    HelloField.REQUESTS_PENDING_MAX: ("requests_pending_max", _U32),
    HelloField.HEARTBEAT_TIMEOUT_MS: ("heartbeat_timeout_ms", _U32),
    HelloField.COMPRESSIONS: ("compressions", None),
    HelloField.MEMBER: ("is_member", _FLAG),
    HelloField.ROLE: ("role", None),
    HelloField.ZONE: ("zone", None),
    HelloField.TUNNEL: ("is_tunnel", _FLAG),
    HelloField.TRACES: ("accepts_traces", _FLAG),
    HelloField.NONCE: ("nonce", struct.Struct(f"{NONCE_BYTES}s")),
}
_REQUIRED = frozenset({"cluster", "name", "incarnation", "frame_bytes_max"})
_PARTS = frozenset({HelloField.ROLE, HelloField.ZONE})


def encode_hello(hello: HelloFrame) -> bytes:
    """Encode the body of a hello frame; fields after the compressions only if they are set."""
    values = msgspec.structs.asdict(hello)
    values["host"], values["port"] = hello.address
    values["compressions"] = ",".join(hello.compressions)
    body = bytearray()
    for tag, (attribute, layout) in _LAYOUTS.items():
        value = values[attribute]
        if value or tag <= HelloField.COMPRESSIONS:
            encoded = value.encode() if layout is None else layout.pack(value)
            body += _FIELD.pack(tag, len(encoded)) + encoded
    return bytes(body)


def decode_hello(body: bytes) -> HelloFrame:
    """Decode the body of a hello frame; raise MalformedFrameError if it is not valid."""
    if len(body) > HELLO_BYTES_MAX:
        raise MalformedFrameError(f"hello of {len(body)} bytes is longer than {HELLO_BYTES_MAX}")
    fields = _split_fields(body)
    values: dict[str, Any] = {"host": "", "port": 0, "requests_pending_max": 1}
    for tag, (attribute, layout) in _LAYOUTS.items():
        value = fields.get(tag)
        if value is None:
            if attribute in _REQUIRED:
                raise MalformedFrameError(f"hello lacks its {attribute}")
        elif layout is not None:
            if len(value) != layout.size:
                raise MalformedFrameError(
                    f"hello {tag.name.lower()} has {len(value)} bytes, not {layout.size}"
                )
            (values[attribute],) = layout.unpack(value)
        elif tag in _PARTS and len(value) > PART_BYTES_MAX:
            raise MalformedFrameError(
                f"hello {attribute} has {len(value)} bytes, more than {PART_BYTES_MAX}"
            )
        else:
            try:
                values[attribute] = str(value, "utf-8")
            except UnicodeDecodeError as error:
                raise MalformedFrameError(
                    f"hello {attribute} is not valid UTF-8: {error.reason}"
                ) from None
    if values["frame_bytes_max"] == 0 or values["requests_pending_max"] == 0:
        raise MalformedFrameError("hello accepts no frames or no requests")
    try:
        validate_node_name(values["name"])
    except ConfigError as error:
        raise MalformedFrameError(f"hello: {error}") from None
    values["address"] = Address(values.pop("host"), values.pop("port"))
    if compressions := values.pop("compressions", ""):
        values["compressions"] = tuple(compressions.split(","))
    return HelloFrame(**values)


def _split_fields(body: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    position = 0
    while position < len(body):
        if len(body) - position < _FIELD.size:
            raise MalformedFrameError("hello ends inside a field")
        tag, length = _FIELD.unpack_from(body, position)
        position += _FIELD.size
        if len(body) - position < length:
            raise MalformedFrameError(f"hello field {tag} is longer than the hello")
        fields[tag] = body[position : position + length]
        position += length
    return fields
