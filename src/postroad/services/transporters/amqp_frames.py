"""The frames of AMQP 0-9-1 that come in crowds: packets both ways, and their confirmations.

Everything else is left to whoever knows the whole protocol; frames of no concern pass unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error

from postroad.core.errors import MalformedPayloadError
from postroad.core.limits import MIB

PACKET_BYTES_MAX = 64 * MIB
"""Larger packets are not taken, whatever the server carries."""
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
"""The types of frames."""
_END = 0xCE
_END_BYTE = b"\xce"
_AROUND = 8
"""The bytes of a frame besides what is in it."""

_FRAME = Struct(">BHI")
_METHOD_NAME = Struct(">HH")
_CONTENT = Struct(">HHQH")
_ACK = Struct(">HHQB")
_NUMBER = Struct(">Q")
_BASIC = 60
_PUBLISH = _METHOD_NAME.pack(_BASIC, 40) + b"\0\0"
_DELIVER = _METHOD_NAME.pack(_BASIC, 60)
_BASIC_ACK = 80
_CLOSE = _METHOD_NAME.pack(10, 50)

HEARTBEAT_FRAME = _FRAME.pack(HEARTBEAT, 0, 0) + _END_BYTE

Delivered = Callable[[bytes, int, bytes], None]
"""Gets the name of a consumer, the number of a packet, and the packet."""


def publish_head(channel: int, exchange: str, routing_key: str) -> bytes:
    """What says where a packet goes; its content must follow."""
    names = _short(exchange) + _short(routing_key)
    return _frame(METHOD, channel, _PUBLISH + names + b"\0")


def content(channel: int, data: bytes, frame_bytes_max: int) -> bytes:
    """What is in a packet, in as many frames as it takes."""
    header = _frame(HEADER, channel, _CONTENT.pack(_BASIC, 0, len(data), 0))
    step = frame_bytes_max - _AROUND
    if len(data) <= step:
        return header + _frame(BODY, channel, data) if data else header
    bodies = [
        _frame(BODY, channel, data[start : start + step]) for start in range(0, len(data), step)
    ]
    return b"".join([header, *bodies])


def ack(channel: int, number: int) -> bytes:
    """Confirms one packet."""
    return _frame(METHOD, channel, _ACK.pack(_BASIC, _BASIC_ACK, number, 0))


def closing_words(frame: bytes) -> str:
    """What a server says when it closes the connection; nothing if it does not."""
    start = _FRAME.size
    if not frame.startswith(_CLOSE, start) or frame[0] != METHOD:
        return ""
    # A number, and a text with its length.
    text_at = start + len(_CLOSE) + 3
    length = int.from_bytes(frame[text_at - 1 : text_at])
    return frame[text_at : text_at + length].decode(errors="replace")


class FrameSorter:
    """Takes packets out of what a server sends, however it is cut.

    Args:
        delivered: is called with each packet for the channel.
        passed: is called with every frame that is no part of such a packet.

    Attributes:
        channel: where packets come; none until it is set.
        frame_bytes_max: what both sides agreed on.
    """

    def __init__(self, delivered: Delivered, passed: Callable[[bytes], None]) -> None:
        self._delivered = delivered
        self._passed = passed
        self._rest = b""
        self.channel = 0
        self.frame_bytes_max = 128 * 1024
        # Of the packet that is under way: for whom, its number, and what is missing.
        self._consumer: bytes | None = None
        self._number = 0
        self._missing: int | None = None
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take what came; raises MalformedPayloadError if it is no sequence of frames."""
        if self._rest:
            data = self._rest + data
        position, length = 0, len(data)
        while length - position >= _AROUND:
            type_, channel, size = _FRAME.unpack_from(data, position)
            if size + _AROUND > self.frame_bytes_max:
                raise MalformedPayloadError(f"a frame of {size} bytes")
            end = position + size + _AROUND
            if end > length:
                break
            if data[end - 1] != _END:
                raise MalformedPayloadError("a frame without end")
            is_ours = channel == self.channel and channel != 0
            if not (is_ours and self._take(type_, data[position + 7 : end - 1])):
                self._passed(data[position:end])
            position = end
        self._rest = data[position:]

    def _take(self, type_: int, payload: bytes) -> bool:
        """Take a frame that is part of a packet; says whether it is one."""
        if type_ == METHOD:
            if not payload.startswith(_DELIVER):
                return False
            self._begin(payload)
            return True
        if self._consumer is None:
            return False
        if type_ == HEADER:
            self._expect(payload)
        elif type_ == BODY:
            self._add(payload)
        return type_ in (HEADER, BODY)

    def _begin(self, payload: bytes) -> None:
        if self._consumer is not None:
            raise MalformedPayloadError("a packet within another")
        name_at = len(_DELIVER) + 1
        try:
            number_at = name_at + payload[name_at - 1]
            (self._number,) = _NUMBER.unpack_from(payload, number_at)
        except (IndexError, error):
            raise MalformedPayloadError("a packet without a number") from None
        self._consumer = payload[name_at:number_at]

    def _expect(self, payload: bytes) -> None:
        try:
            _, _, self._missing, _ = _CONTENT.unpack_from(payload)
        except error:
            raise MalformedPayloadError("a packet without a size") from None
        if self._missing > PACKET_BYTES_MAX:
            raise MalformedPayloadError(f"a packet of {self._missing} bytes")
        self._finish_if_whole()

    def _add(self, part: bytes) -> None:
        if self._missing is None or len(part) > self._missing:
            raise MalformedPayloadError("a packet is longer than it says")
        self._parts.append(part)
        self._missing -= len(part)
        self._finish_if_whole()

    def _finish_if_whole(self) -> None:
        if self._missing != 0 or self._consumer is None:
            return
        consumer, parts = self._consumer, self._parts
        self._consumer, self._missing, self._parts = None, None, []
        self._delivered(consumer, self._number, parts[0] if len(parts) == 1 else b"".join(parts))


def _frame(type_: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_FRAME.pack(type_, channel, len(payload)), payload)


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data
