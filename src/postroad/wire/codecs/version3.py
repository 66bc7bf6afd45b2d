"""Frames of version 3, Postroad's own: one fixed header, then subject, then payload.

u32 length      bytes that follow this field
u8  type        see FrameType
u8  flags       1 one-way, 2 compressed payload, 4 retryable failure
u16 short       request: subject length; reply: status; goodbye: 0
u32 word        request: time left in ms, 0 = none told; reply and goodbye: error code
u64 id          request, reply, cancel, ping, pong
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

from postroad.core.errors import FrameTooLarge, LocalProtocolError, MalformedFrame
from postroad.core.limits import HELLO_BYTES_MAX, SUBJECT_BYTES_MAX
from postroad.wire.checks import Bytes, check_frame_size, decode_text, frame_too_large
from postroad.wire.compression import Algorithm, compress_payload, decompress_payload
from postroad.wire.frames import Cancel, Frame, Goodbye, Hello, Ping, Pong, Reply, Request, Status
from postroad.wire.hello import decode_hello, encode_hello

from .codec import JOIN_BYTES_MAX, Codec, encode_application_frame

if TYPE_CHECKING:
    from postroad.core.address import Address

HEADER = struct.Struct(">IBBHIQ")
_HEADER_BYTES = HEADER.size
_LENGTH_BYTES = 4
# Length of a frame with neither subject nor payload.
_EMPTY_LENGTH = _HEADER_BYTES - _LENGTH_BYTES

ONE_WAY = 1
COMPRESSED = 2
RETRYABLE = 4

TIMEOUT_MS_MAX = 0xFFFF_FFFF
GOODBYE_BYTES_MAX = 1_024


class FrameType(enum.IntEnum):
    """First byte after the length."""

    REQUEST = 1
    REPLY = 2
    HELLO = 3
    CANCEL = 4
    PING = 5
    PONG = 6
    GOODBYE = 7


# Plain integers: looking up an enum member costs more than the comparison it is used in.
_REQUEST = int(FrameType.REQUEST)
_REPLY = int(FrameType.REPLY)
_STATUS_MAX = max(Status)

_CONTROL_BODY_MAX = {
    FrameType.HELLO: HELLO_BYTES_MAX,
    FrameType.CANCEL: 0,
    FrameType.PING: 0,
    FrameType.PONG: 0,
    FrameType.GOODBYE: GOODBYE_BYTES_MAX,
}


class Version3Codec(Codec):
    """Version 3, either side."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.sender: Address | None = None
        self.need = _HEADER_BYTES
        # Set once both sides have said hello and share an algorithm.
        self.compression: Algorithm | None = None

    def decode(self, data: Bytes, frames: list[Frame]) -> int:
        position = 0
        end = len(data)
        unpack = HEADER.unpack_from
        length_max = self.frame_bytes_max + _EMPTY_LENGTH
        self.need = _HEADER_BYTES
        while end - position >= _HEADER_BYTES:
            length, kind, flags, short, word, id = unpack(data, position)
            if not _EMPTY_LENGTH <= length <= length_max:
                raise _bad_length(length, self.frame_bytes_max)
            start = position + _HEADER_BYTES
            stop = position + _LENGTH_BYTES + length
            if kind > _REPLY or kind == 0:
                _check_control_frame(kind, stop - start)
            if stop > end:
                self.need = stop - position
                break
            if kind == _REQUEST:
                split = start + short
                if split > stop or short > SUBJECT_BYTES_MAX:
                    raise MalformedFrame(f"request {id} has a subject of {short} bytes")
                payload = data[split:stop]
                if flags & COMPRESSED:
                    payload = self._decompress(payload, id)
                frames.append(
                    Request(
                        id,
                        decode_text(data[start:split], "subject", id),
                        payload,  # type: ignore[arg-type]
                        word,
                        flags & ONE_WAY != 0,
                    )
                )
            elif kind == _REPLY:
                payload = data[start:stop]
                if flags & COMPRESSED:
                    payload = self._decompress(payload, None)
                if short > _STATUS_MAX:
                    raise MalformedFrame(f"reply {id} has unknown status {short}")
                frames.append(
                    Reply(id, short, payload, word, flags & RETRYABLE != 0)  # type: ignore[arg-type]
                )
            else:
                frames.append(self._decode_control(kind, word, id, bytes(data[start:stop])))
            position = stop
        return position

    def encode_request(
        self,
        out: list[bytes],
        id: int,
        subject: str,
        payload: bytes,
        timeout_ms: int,
        one_way: bool,
    ) -> None:
        encoded = subject.encode()
        flags = ONE_WAY if one_way else 0
        if self.compression is not None:
            packed = compress_payload(self.compression, payload)
            if packed is not None:
                payload, flags = packed, flags | COMPRESSED
        size = len(encoded)
        length = _EMPTY_LENGTH + size + len(payload)
        header = HEADER.pack(length, _REQUEST, flags, size, timeout_ms, id)
        if length < JOIN_BYTES_MAX:
            out.append(header + encoded + payload)
        else:
            out += (header + encoded, payload)

    def encode_reply(
        self, out: list[bytes], id: int, status: int, payload: bytes, code: int, retryable: bool
    ) -> None:
        flags = RETRYABLE if retryable else 0
        if self.compression is not None:
            packed = compress_payload(self.compression, payload)
            if packed is not None:
                payload, flags = packed, flags | COMPRESSED
        length = _EMPTY_LENGTH + len(payload)
        header = HEADER.pack(length, _REPLY, flags, status, code, id)
        if length < JOIN_BYTES_MAX:
            out.append(header + payload)
        else:
            out += (header, payload)

    def encode(self, out: list[bytes], frame: Frame) -> None:
        if encode_application_frame(self, out, frame):
            return
        if isinstance(frame, Hello):
            out.append(_control(FrameType.HELLO, body=encode_hello(frame)))
        elif isinstance(frame, Goodbye):
            body = frame.reason.encode()[:GOODBYE_BYTES_MAX]
            body = body.decode("utf-8", "ignore").encode()
            out.append(_control(FrameType.GOODBYE, word=frame.code, body=body))
        elif isinstance(frame, Cancel):
            out.append(_control(FrameType.CANCEL, id=frame.id))
        elif isinstance(frame, Ping):
            out.append(_control(FrameType.PING, id=frame.id))
        elif isinstance(frame, Pong):
            out.append(_control(FrameType.PONG, id=frame.id))
        else:
            raise LocalProtocolError(f"version 3 has no frame for {type(frame).__name__}")

    def _decode_control(self, kind: int, word: int, id: int, body: bytes) -> Frame:
        if kind == FrameType.HELLO:
            hello = decode_hello(body)
            self.sender = hello.address
            return hello
        if kind == FrameType.GOODBYE:
            return Goodbye(word, decode_text(body, "goodbye"))
        if kind == FrameType.CANCEL:
            return Cancel(id)
        return Ping(id) if kind == FrameType.PING else Pong(id)

    def _decompress(self, packed: Bytes, request_id: int | None) -> bytes:
        if self.compression is None:
            raise MalformedFrame("compressed payload, but no compression was agreed", request_id)
        try:
            return decompress_payload(self.compression, bytes(packed), self.frame_bytes_max)
        except MalformedFrame as error:
            raise MalformedFrame(str(error), request_id) from None


def _control(kind: FrameType, *, word: int = 0, id: int = 0, body: bytes = b"") -> bytes:
    return HEADER.pack(_EMPTY_LENGTH + len(body), kind, 0, 0, word, id) + body


def _check_control_frame(kind: int, body_bytes: int) -> None:
    """Refuse unknown and oversized control frames by their header alone."""
    maximum = _CONTROL_BODY_MAX.get(kind)  # type: ignore[call-overload]
    if maximum is None:
        raise MalformedFrame(f"unknown frame type {kind}")
    check_frame_size(body_bytes, maximum)


def _bad_length(length: int, frame_bytes_max: int) -> MalformedFrame | FrameTooLarge:
    if length < _EMPTY_LENGTH:
        return MalformedFrame(f"a frame of {length} bytes is shorter than its header")
    return frame_too_large(length - _EMPTY_LENGTH, frame_bytes_max)
