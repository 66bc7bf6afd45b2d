"""Encoding of envelopes between domains.

    u8   version, 1
    u16  length of the route
         the route: destination, NUL, position in it, NUL, source; paths as text, in UTF-8
    u8   kind
    u64  TTL in milliseconds; all bits set if it never expires
    16   id
         the tail as a MessagePack array: in_reply_to, session, suppress_errors, wants_reply,
         headers, content_type, payload

The route is separate because a domain that forwards a message reads and changes nothing else, and
because nearly all messages use the same few routes, whose encoding is cached.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Annotated, TypeAlias

import msgspec

from postroad.cells.addresses import CellPath
from postroad.cells.delivery.envelope import (
    ENVELOPE_BYTES_MAX,
    HEADERS_MAX,
    ID_BYTES,
    TTL_MS_MAX,
    Envelope,
    MessageId,
    MessageKind,
)
from postroad.core.errors import ConfigError, MalformedPayloadError, MessageTooLargeError

VERSION = 1

_HEAD = Struct(">BH")
_FIXED = Struct(">BQ16s")
_ROUTE_BYTES_MAX = 0xFFFF
_NO_TTL = (1 << 64) - 1
_ZERO_TTL = bytes(8)
_MESSAGE_KIND, _REPLY_KIND = MessageKind.MESSAGE.value, MessageKind.REPLY.value
_KINDS = {kind.value: kind for kind in MessageKind}
# Limits of the two route caches, which are cleared when full: peers choose the routes.
_CACHED_ROUTES_MAX = 4_096
_CACHED_ROUTE_BYTES_MAX = 512

_Paths: TypeAlias = tuple[CellPath, CellPath]
"""Destination and source."""


class EnvelopeTail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields of an envelope after route, kind, TTL and id."""

    in_reply_to: MessageId | None
    session: str | None
    suppress_errors: bool
    wants_reply: bool
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=HEADERS_MAX)] | None
    content_type: str
    payload: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EnvelopeTail)
_decoded_routes: dict[bytes, _Paths] = {}
_encoded_routes: dict[_Paths, bytes] = {}


def encode_envelope(envelope: Envelope, *, bytes_max: int = ENVELOPE_BYTES_MAX) -> bytes:
    """Return the encoded envelope; raises MessageTooLargeError if it is too large."""
    paths = (envelope.destination, envelope.source)
    ttl_ms = envelope.ttl_ms
    data = (
        (_encoded_routes.get(paths) or _encode_route(paths))
        + _FIXED.pack(envelope.kind, _NO_TTL if ttl_ms is None else ttl_ms, envelope.id)
        + _encoder.encode(
            (
                envelope.in_reply_to,
                envelope.session,
                envelope.suppress_errors,
                envelope.wants_reply,
                envelope.headers,
                envelope.content_type,
                envelope.payload,
            )
        )
    )
    if len(data) > bytes_max:
        raise MessageTooLargeError(f"message of {len(data)} bytes is larger than {bytes_max}")
    return data


def decode_envelope(data: bytes, *, bytes_max: int = ENVELOPE_BYTES_MAX) -> Envelope:
    """Decode an envelope; raises MalformedPayloadError if it is malformed."""
    if len(data) > bytes_max:
        raise MalformedPayloadError(f"envelope of {len(data)} bytes is larger than {bytes_max}")
    try:
        prefix = route_prefix(data)
        destination, source = _decoded_routes.get(prefix) or _decode_route(prefix)
        kind, ttl_ms, id = _FIXED.unpack_from(data, len(prefix))
        tail = _decoder.decode(memoryview(data)[len(prefix) + _FIXED.size :])
        return Envelope(
            id=id,
            destination=destination,
            source=source,
            kind=_KINDS[kind],
            in_reply_to=tail.in_reply_to,
            session=tail.session,
            ttl_ms=None if ttl_ms == _NO_TTL else ttl_ms,
            suppress_errors=tail.suppress_errors,
            wants_reply=tail.wants_reply,
            headers=tail.headers,
            content_type=tail.content_type,
            payload=tail.payload,
        )
    except MalformedPayloadError:
        raise
    except KeyError as error:
        raise MalformedPayloadError(f"malformed envelope: kind {error}") from None
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, StructError) as error:
        raise MalformedPayloadError(f"malformed envelope: {error}") from None


# Fast path: most envelopes have neither session nor headers. The tail of those with a short payload
# of bytes has a fixed layout as well, so that it can be written and read with all fields before it.

# The 7 elements of the array; the payload is a binary of less than 256 bytes.
_REQUEST_TAIL = _encoder.encode((None, None, False, True, None, "", b""))[:-1]
_REQUEST = Struct(f">BQ16s{len(_REQUEST_TAIL)}sB")
_REPLY_TAILS = _encoder.encode((bytes(ID_BYTES), None, False, False, None, "", b""))[:-1].split(
    bytes(ID_BYTES)
)
_REPLY = Struct(f">BQ16s{len(_REPLY_TAILS[0])}s16s{len(_REPLY_TAILS[1])}sB")
_SHORT_BYTES_MAX = 0xFF


def encode_request(prefix: bytes, ttl_ms: int, id: bytes, payload: bytes) -> bytes:
    """Return an encoded request with bytes from valid fields and an encoded route."""
    size = len(payload)
    if size <= _SHORT_BYTES_MAX:
        return prefix + _REQUEST.pack(_MESSAGE_KIND, ttl_ms, id, _REQUEST_TAIL, size) + payload
    tail = (None, None, False, True, None, "", payload)
    return prefix + _FIXED.pack(_MESSAGE_KIND, ttl_ms, id) + _encoder.encode(tail)


def encode_reply(
    prefix: bytes,
    ttl_ms: int | None,
    id: bytes,
    in_reply_to: bytes,
    content_type: str,
    payload: bytes,
) -> bytes:
    """Return an encoded reply from valid fields and an encoded route."""
    size = len(payload)
    ttl = _NO_TTL if ttl_ms is None else ttl_ms
    if size <= _SHORT_BYTES_MAX and not content_type:
        begin, end = _REPLY_TAILS
        return prefix + _REPLY.pack(_REPLY_KIND, ttl, id, begin, in_reply_to, end, size) + payload
    tail = (in_reply_to, None, False, False, None, content_type, payload)
    return prefix + _FIXED.pack(_REPLY_KIND, ttl, id) + _encoder.encode(tail)


def decode_short_request(data: bytes, at: int) -> tuple[int | None, bytes, bytes] | None:
    """Return TTL, id and payload of a request that is laid out like those of `encode_request`.

    Its route ends at `at`. None if it is laid out otherwise, expired or malformed.
    """
    payload_at = at + _REQUEST.size
    if len(data) < payload_at:
        return None
    kind, ttl_ms, id, tail, size = _REQUEST.unpack_from(data, at)
    if tail != _REQUEST_TAIL or kind != _MESSAGE_KIND or len(data) != payload_at + size:
        return None
    if 0 < ttl_ms <= TTL_MS_MAX:
        return ttl_ms, id, data[payload_at:]
    return (None, id, data[payload_at:]) if ttl_ms == _NO_TTL else None


def decode_short_reply(data: bytes, at: int) -> tuple[bytes, bytes] | None:
    """Return the id that a reply repeats, and its payload; see `decode_short_request`."""
    payload_at = at + _REPLY.size
    if len(data) < payload_at:
        return None
    kind, ttl_ms, _, before, in_reply_to, after, size = _REPLY.unpack_from(data, at)
    if [before, after] != _REPLY_TAILS or kind != _REPLY_KIND or len(data) != payload_at + size:
        return None
    return (in_reply_to, data[payload_at:]) if ttl_ms <= TTL_MS_MAX or ttl_ms == _NO_TTL else None


def decode_fast(data: bytes, at: int) -> tuple[int, int | None, bytes, EnvelopeTail] | None:
    """Return kind, TTL, id and tail of an envelope whose route ends at `at`.

    None if it has a session or headers, or is malformed.
    """
    if len(data) > ENVELOPE_BYTES_MAX:
        return None
    try:
        kind, ttl_ms, id = _FIXED.unpack_from(data, at)
        tail = _decoder.decode(data[at + _FIXED.size :])
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, StructError):
        return None
    if tail.session is not None or tail.headers is not None:
        return None
    if ttl_ms > TTL_MS_MAX:
        return (kind, None, id, tail) if ttl_ms == _NO_TTL else None
    return kind, ttl_ms, id, tail


# Routes.


def route_prefix(data: bytes) -> bytes:
    """Return the bytes of the route at the start of an envelope, without decoding them.

    Of a truncated envelope it returns all bytes, which are no route.
    """
    try:
        return data[: 3 + (data[1] << 8 | data[2])]
    except IndexError:
        return data


def is_expired(data: bytes, at: int) -> bool:
    """Return whether the TTL of an envelope is over or truncated; its route ends at `at`."""
    return len(data) < at + _FIXED.size or data[at + 1 : at + 9] == _ZERO_TTL


def encode_route(destination: CellPath, source: CellPath) -> bytes:
    """Return the route prefix of envelopes with these paths."""
    paths = (destination, source)
    return _encoded_routes.get(paths) or _encode_route(paths)


def _encode_route(paths: _Paths) -> bytes:
    destination, source = paths
    route = f"{destination}\0{destination.position}\0{source}".encode()
    if len(route) > _ROUTE_BYTES_MAX:
        raise MessageTooLargeError(
            f"paths of {len(route)} bytes are longer than {_ROUTE_BYTES_MAX}"
        )
    prefix = _HEAD.pack(VERSION, len(route)) + route
    if len(prefix) <= _CACHED_ROUTE_BYTES_MAX:
        if len(_encoded_routes) >= _CACHED_ROUTES_MAX:
            _encoded_routes.clear()
        _encoded_routes[paths] = prefix
    return prefix


def _decode_route(prefix: bytes) -> _Paths:
    version, size = _HEAD.unpack_from(prefix)
    if version != VERSION:
        raise MalformedPayloadError(f"unsupported envelope version {version}; supported: {VERSION}")
    if len(prefix) != _HEAD.size + size:
        raise MalformedPayloadError(f"malformed envelope: its route of {size} bytes is truncated")
    parts = prefix[_HEAD.size :].decode().split("\0")
    if len(parts) != 3 or not parts[1].isascii() or not parts[1].isdigit():
        raise MalformedPayloadError(
            "malformed envelope: its route is not two paths with a position between"
        )
    try:
        destination = CellPath(CellPath.parse(parts[0]).hops, int(parts[1]))
        paths = (destination, CellPath.parse(parts[2]))
    except ConfigError as error:
        raise MalformedPayloadError(f"malformed envelope: {error}") from None
    if len(prefix) <= _CACHED_ROUTE_BYTES_MAX:
        if len(_decoded_routes) >= _CACHED_ROUTES_MAX:
            _decoded_routes.clear()
        _decoded_routes[prefix] = paths
    return paths
