"""JSON, as nodes of the original system write it unless told otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from postroad.core.errors import MalformedPayloadError
from postroad.core.limits import KIB
from postroad.services.kinds import VERSION, Kind
from postroad.services.packet_form import read_leniently
from postroad.services.packets import PACKETS, Event, EventAck, Packet, Request, Response

from .buffers import with_buffers, without_buffer, without_buffers
from .depth import DEPTH_MAX, check_depth
from .serializer import Serializer

# Where users put what they like.
_FREE: dict[type[Any], tuple[str, ...]] = {
    Event: ("data", "meta", "headers"),
    EventAck: ("error",),
    Request: ("params", "meta", "headers"),
    Response: ("data", "meta", "headers", "error"),
}
_VALUE: dict[type[Any], str] = {Event: "data", Request: "params", Response: "data"}
_STREAMED = (Request, Response)

# An escaped character that is no half, a pair of halves, or a half alone.
_ESCAPED = re.compile(
    rb"\\(?:[^u]|u(?![dD][89abcdefABCDEF])|u[dD][89abAB]..\\u[dD][c-fC-F]..)|(\\u[dD][89a-fA-F]..)",
    re.DOTALL,
)

_encoder = msgspec.json.Encoder()
_decoders = {kind: msgspec.json.Decoder(it) for kind, it in PACKETS.items()}
# Packets of which there are many, and as large as those are.
_quick_decoders: dict[Kind, msgspec.json.Decoder[Request] | msgspec.json.Decoder[Response]] = {
    Kind.REQUEST: msgspec.json.Decoder(Request),
    Kind.RESPONSE: msgspec.json.Decoder(Response),
}
_QUICK_BYTES_MAX = 4 * KIB
_SENDERS_MAX = 10_000


class JsonSerializer(Serializer):
    """Text that everybody can read.

    Bytes are written as the other system does, and take up to four times their size. Only chunks
    of streams are read back as bytes, as there; `revives_buffers` reads them back everywhere,
    and takes whatever looks like bytes for bytes.
    """

    name = "JSON"
    chunk_factor = len("255,")
    chunk_bytes_more = len('{"type":"Buffer","data":[]}')

    def __init__(self, *, revives_buffers: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._revives_buffers = revives_buffers
        self._quick_bytes_max = min(_QUICK_BYTES_MAX, self._packet_bytes_max)
        # Those whose names were looked at.
        self._senders: set[str] = set()

    def deserialize(self, kind: Kind, data: bytes | bytearray | memoryview) -> Packet:
        if not self._revives_buffers and len(data) <= self._quick_bytes_max:
            quick = _read_quickly(kind, data)
            if quick is not None and quick.sender in self._senders:
                return quick
        packet = super().deserialize(kind, data)
        if len(self._senders) < _SENDERS_MAX:
            self._senders.add(packet.sender)
        return packet

    def _encode(self, packet: Packet) -> bytes:
        changed = {}
        for name in _FREE.get(type(packet), ()):
            value = getattr(packet, name)
            if type(value) is dict and not value:
                continue
            if (other := with_buffers(value)) is not value:
                changed[name] = other
        if changed:
            packet = msgspec.structs.replace(packet, **changed)
        return _encoder.encode(packet)

    def _decode(self, kind: Kind, data: bytes) -> Packet:
        try:
            packet = _decoders[kind].decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            packet = read_leniently(kind, _read_plain(data), checks_version=self._checks_version)
        if data.count(b"{") + data.count(b"[") > DEPTH_MAX:
            check_depth(packet)
        return self._with_bytes(packet)

    def _with_bytes(self, packet: Packet) -> Packet:
        if isinstance(packet, _STREAMED) and packet.stream is True and packet.seq:
            return _with_value_read(packet, without_buffer)
        if self._revives_buffers and type(packet) in _VALUE:
            return _with_value_read(packet, without_buffers)
        return packet


def _read_quickly(kind: Kind, data: bytes | bytearray | memoryview) -> Request | Response | None:
    """A packet that is as most are; None if it has to be looked at more closely."""
    decoder = _quick_decoders.get(kind)
    if decoder is None or type(data) is not bytes:
        return None
    if data.count(b"{") + data.count(b"[") > DEPTH_MAX:
        return None
    try:
        packet = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return packet if packet.ver == VERSION and packet.stream is not True else None


def _with_value_read(packet: Packet, read: Callable[[Any], Any]) -> Packet:
    field = _VALUE[type(packet)]
    value = getattr(packet, field)
    other = read(value)
    return packet if other is value else msgspec.structs.replace(packet, **{field: other})


def _read_plain(data: bytes) -> Any:
    """Read what may have halves of characters, which JavaScript makes when it cuts texts."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        whole = _ESCAPED.sub(lambda found: b"\\ufffd" if found[1] else found[0], data)
        if whole == data:
            raise MalformedPayloadError(f"no JSON: {error}") from None
    return msgspec.json.decode(whole)
