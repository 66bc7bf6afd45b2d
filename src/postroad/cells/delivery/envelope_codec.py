"""How envelopes are written between domains.

    u8   version, 1
    u16  length of the route
         the route: destination, NUL, position in it, NUL, source; paths as text, in UTF-8
    u8   kind
    u64  time left in milliseconds; all bits set if for ever
    16   id
         the rest as a MessagePack array: answers, session, suppress_errors, wants_reply, headers,
         content, payload

The route stands apart because it is all that a domain in between has to look at and to change, and
because the same few routes come with nearly all messages: they are read and written once.
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
    TTL_MS_MAX,
    Envelope,
    MessageId,
    MessageKind,
)
from postroad.core.errors import ConfigError, MalformedPayloadError, MessageTooLargeError

VERSION = 1

_BEGIN = Struct(">BH")
_FIXED = Struct(">BQ16s")
_ROUTE_BYTES_MAX = 0xFFFF
_FOR_EVER = (1 << 64) - 1
_NO_TIME = bytes(8)
_KINDS = {it.value: it for it in MessageKind}
# Routes remembered either way; forgetting them all costs little. Peers choose them.
_ROUTES_MAX = 4_096
_ROUTE_BYTES_REMEMBERED = 512

_Paths: TypeAlias = tuple[CellPath, CellPath]
"""Destination and source."""


class EnvelopeTail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an envelope has besides its route, kind, time and id."""

    answers: MessageId | None
    session: str | None
    suppress_errors: bool
    wants_reply: bool
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=HEADERS_MAX)] | None
    content: str
    payload: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EnvelopeTail)
_read_routes: dict[bytes, _Paths] = {}
_written_routes: dict[_Paths, bytes] = {}


def encode_envelope(envelope: Envelope, *, bytes_max: int = ENVELOPE_BYTES_MAX) -> bytes:
    """The bytes to send; raises MessageTooLargeError if there are too many."""
    paths = (envelope.destination, envelope.source)
    ttl_ms = envelope.ttl_ms
    data = (
        (_written_routes.get(paths) or _write_route(paths))
        + _FIXED.pack(envelope.kind, _FOR_EVER if ttl_ms is None else ttl_ms, envelope.id)
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
        raise MessageTooLargeError(f"a message of {len(data)} bytes; {bytes_max} is the most")
    return data


def decode_envelope(data: bytes, *, bytes_max: int = ENVELOPE_BYTES_MAX) -> Envelope:
    """Read what a peer sent; raises MalformedPayloadError for anything that is no envelope."""
    if len(data) > bytes_max:
        raise MalformedPayloadError(f"an envelope of {len(data)} bytes; {bytes_max} is the most")
    try:
        begin = route_prefix(data)
        destination, source = _read_routes.get(begin) or _read_route(begin)
        kind, ttl_ms, id = _FIXED.unpack_from(data, len(begin))
        rest = _decoder.decode(memoryview(data)[len(begin) + _FIXED.size :])
        return Envelope(
            id=id,
            destination=destination,
            source=source,
            kind=_KINDS[kind],
            in_reply_to=rest.answers,
            session=rest.session,
            ttl_ms=None if ttl_ms == _FOR_EVER else ttl_ms,
            suppress_errors=rest.suppress_errors,
            wants_reply=rest.wants_reply,
            headers=rest.headers,
            content_type=rest.content,
            payload=rest.payload,
        )
    except MalformedPayloadError:
        raise
    except KeyError as error:
        raise MalformedPayloadError(f"no envelope: kind {error}") from None
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, StructError) as error:
        raise MalformedPayloadError(f"no envelope: {error}") from None


# Envelopes without a session and headers, which most are, as their parts.


def encode_fast(
    begin: bytes,
    kind: int,
    ttl_ms: int | None,
    id: bytes,
    *,
    answers: bytes | None,
    wants_reply: bool,
    content: str,
    payload: bytes,
) -> bytes:
    """The bytes to send of an envelope that begins with a route; the caller knows all is valid."""
    return (
        begin
        + _FIXED.pack(kind, _FOR_EVER if ttl_ms is None else ttl_ms, id)
        + _encoder.encode((answers, None, False, wants_reply, None, content, payload))
    )


def decode_fast(data: bytes, at: int) -> tuple[int, int | None, bytes, EnvelopeTail] | None:
    """Kind, time, id and the rest of an envelope behind its route; None if it is not a plain one.

    What is malformed is not plain either.
    """
    if len(data) > ENVELOPE_BYTES_MAX:
        return None
    try:
        kind, ttl_ms, id = _FIXED.unpack_from(data, at)
        rest = _decoder.decode(data[at + _FIXED.size :])
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, StructError):
        return None
    if rest.session is not None or rest.headers is not None:
        return None
    if ttl_ms > TTL_MS_MAX:
        return (kind, None, id, rest) if ttl_ms == _FOR_EVER else None
    return kind, ttl_ms, id, rest


# Routes.


def route_prefix(data: bytes) -> bytes:
    """All that the route takes at the beginning of an envelope, whatever it is."""
    if len(data) < _BEGIN.size:
        raise MalformedPayloadError(f"no envelope: {len(data)} bytes")
    return data[: 3 + (data[1] << 8 | data[2])]


def is_expired(data: bytes, at: int) -> bool:
    """Whether the time of an envelope whose route ends there is over, or cannot be read."""
    return len(data) < at + _FIXED.size or data[at + 1 : at + 9] == _NO_TIME


def encode_route(destination: CellPath, source: CellPath) -> bytes:
    """What an envelope with these paths begins with."""
    paths = (destination, source)
    return _written_routes.get(paths) or _write_route(paths)


def _write_route(paths: _Paths) -> bytes:
    destination, source = paths
    route = f"{destination}\0{destination.position}\0{source}".encode()
    if len(route) > _ROUTE_BYTES_MAX:
        raise MessageTooLargeError(f"paths of {len(route)} bytes; {_ROUTE_BYTES_MAX} is the most")
    begin = _BEGIN.pack(VERSION, len(route)) + route
    if len(begin) <= _ROUTE_BYTES_REMEMBERED:
        if len(_written_routes) >= _ROUTES_MAX:
            _written_routes.clear()
        _written_routes[paths] = begin
    return begin


def _read_route(begin: bytes) -> _Paths:
    version, size = _BEGIN.unpack_from(begin)
    if version != VERSION:
        raise MalformedPayloadError(f"version {version} of envelopes is not known; {VERSION} is")
    if len(begin) != _BEGIN.size + size:
        raise MalformedPayloadError(f"no envelope: its route of {size} bytes is cut off")
    parts = begin[_BEGIN.size :].decode().split("\0")
    if len(parts) != 3 or not parts[1].isascii() or not parts[1].isdigit():
        raise MalformedPayloadError(
            "no envelope: its route is not two paths with a position between"
        )
    try:
        destination = CellPath(CellPath.parse(parts[0]).hops, int(parts[1]))
        paths = (destination, CellPath.parse(parts[2]))
    except ConfigError as error:
        raise MalformedPayloadError(f"no envelope: {error}") from None
    if len(begin) <= _ROUTE_BYTES_REMEMBERED:
        if len(_read_routes) >= _ROUTES_MAX:
            _read_routes.clear()
        _read_routes[begin] = paths
    return paths
