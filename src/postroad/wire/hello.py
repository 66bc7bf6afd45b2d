"""The hello of version 3: checks and encoding (docs/wire-protocol.md, 3.2).

The body consists of tagged fields, so that later versions can add some: u16 tag, u16 length, value,
big endian. Unknown tags are skipped, missing ones have defaults, the last of repeated ones counts.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection

from postroad.core.errors import (
    ConfigError,
    DuplicateNameHandshakeError,
    HandshakeRejectedError,
    MalformedFrameError,
)
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.core.names import Address, validate_node_name
from postroad.wire.frames import HelloFrame, decode_utf8


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
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_U16 = struct.Struct(">H")
_U8 = struct.Struct(">B")


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


# Limit of a role or a zone.
PART_BYTES_MAX = 255
NONCE_BYTES = 32

_REQUIRED = (
    HelloField.CLUSTER,
    HelloField.NAME,
    HelloField.INCARNATION,
    HelloField.FRAME_BYTES_MAX,
)


def encode_hello(hello: HelloFrame) -> bytes:
    """Encode the body of a hello frame."""
    fields = {
        HelloField.CLUSTER: hello.cluster.encode(),
        HelloField.NAME: hello.name.encode(),
        HelloField.INCARNATION: _U64.pack(hello.incarnation),
        HelloField.HOST: hello.address.host.encode(),
        HelloField.PORT: _U16.pack(hello.address.port),
        HelloField.FRAME_BYTES_MAX: _U32.pack(hello.frame_bytes_max),
        HelloField.REQUESTS_PENDING_MAX: _U32.pack(hello.requests_pending_max),
        HelloField.HEARTBEAT_TIMEOUT_MS: _U32.pack(hello.heartbeat_timeout_ms),
        HelloField.COMPRESSIONS: ",".join(hello.compressions).encode(),
    }
    if hello.is_member:
        fields[HelloField.MEMBER] = _U8.pack(1)
    if hello.role:
        fields[HelloField.ROLE] = hello.role.encode()
    if hello.zone:
        fields[HelloField.ZONE] = hello.zone.encode()
    if hello.is_tunnel:
        fields[HelloField.TUNNEL] = _U8.pack(1)
    if hello.accepts_traces:
        fields[HelloField.TRACES] = _U8.pack(1)
    if hello.nonce:
        fields[HelloField.NONCE] = hello.nonce
    return b"".join(_FIELD.pack(tag, len(value)) + value for tag, value in fields.items())


def decode_hello(body: bytes) -> HelloFrame:
    """Decode the body of a hello frame; raise MalformedFrameError if it is not valid."""
    if len(body) > HELLO_BYTES_MAX:
        raise MalformedFrameError(f"hello of {len(body)} bytes is longer than {HELLO_BYTES_MAX}")
    fields = _split_fields(body)
    for tag in _REQUIRED:
        if tag not in fields:
            raise MalformedFrameError(f"hello lacks its {tag.name.lower()}")
    compressions = _text(fields, HelloField.COMPRESSIONS)
    frame_bytes_max = _number(fields, HelloField.FRAME_BYTES_MAX, _U32)
    requests_pending_max = _number(fields, HelloField.REQUESTS_PENDING_MAX, _U32, 1)
    if frame_bytes_max == 0 or requests_pending_max == 0:
        raise MalformedFrameError("hello accepts no frames or no requests")
    return HelloFrame(
        cluster=_text(fields, HelloField.CLUSTER),
        name=_name(fields),
        incarnation=_number(fields, HelloField.INCARNATION, _U64),
        address=Address(_text(fields, HelloField.HOST), _number(fields, HelloField.PORT, _U16)),
        frame_bytes_max=frame_bytes_max,
        requests_pending_max=requests_pending_max,
        heartbeat_timeout_ms=_number(fields, HelloField.HEARTBEAT_TIMEOUT_MS, _U32),
        compressions=tuple(compressions.split(",")) if compressions else (),
        is_member=_number(fields, HelloField.MEMBER, _U8) != 0,
        role=_part(fields, HelloField.ROLE),
        zone=_part(fields, HelloField.ZONE),
        is_tunnel=_number(fields, HelloField.TUNNEL, _U8) != 0,
        accepts_traces=_number(fields, HelloField.TRACES, _U8) != 0,
        nonce=_nonce(fields),
    )


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


def _text(fields: dict[int, bytes], tag: HelloField) -> str:
    return decode_utf8(fields.get(tag, b""), f"hello {tag.name.lower()}")


def _part(fields: dict[int, bytes], tag: HelloField) -> str:
    size = len(fields.get(tag, b""))
    if size > PART_BYTES_MAX:
        raise MalformedFrameError(f"hello {tag.name.lower()} has {size} bytes, more than allowed")
    return _text(fields, tag)


def _number(
    fields: dict[int, bytes], tag: HelloField, layout: struct.Struct, default: int = 0
) -> int:
    value = fields.get(tag)
    if value is None:
        return default
    if len(value) != layout.size:
        raise MalformedFrameError(
            f"hello {tag.name.lower()} has {len(value)} bytes, not {layout.size}"
        )
    return int(layout.unpack(value)[0])


def _nonce(fields: dict[int, bytes]) -> bytes:
    nonce = fields.get(HelloField.NONCE, b"")
    if len(nonce) not in (0, NONCE_BYTES):
        raise MalformedFrameError(f"hello nonce has {len(nonce)} bytes, not {NONCE_BYTES}")
    return nonce


def _name(fields: dict[int, bytes]) -> str:
    try:
        return validate_node_name(_text(fields, HelloField.NAME))
    except ConfigError as error:
        raise MalformedFrameError(f"hello: {error}") from None
