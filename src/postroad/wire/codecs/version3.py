"""Frames of version 3: a fixed header, then subject, then payload (docs/wire-protocol.md, 3.1).

u32 length      bytes that follow this field
u8  type        see FrameType
u8  flags       1 one-way, 2 compressed payload, 4 retryable failure, 8 with a trace
u16 short       request: subject length; reply: status; goodbye: 0
u32 word        request: time left in ms, 0 = no deadline; reply and goodbye: error code
u64 id          request, reply, cancel, ping, pong

A request with a trace context has it between subject and payload; see `encode_trace_context`.
"""

from __future__ import annotations

import enum
import struct

from postroad.core.cluster_secret import PROOF_BYTES
from postroad.core.errors import LocalProtocolError, MalformedFrameError
from postroad.core.limits import HELLO_BYTES_MAX, SUBJECT_BYTES_MAX
from postroad.core.names import Address
from postroad.core.tracing import SAMPLED, TRACESTATE_CHARS_MAX, SpanContext, parse_traceparent
from postroad.wire.codecs.codec import JOIN_BYTES_MAX, Codec
from postroad.wire.compression import CompressionAlgorithm, compress_payload, decompress_payload
from postroad.wire.frames import (
    Bytes,
    CancelFrame,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    PingFrame,
    PongFrame,
    ProofFrame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
    check_frame_size,
    decode_utf8,
)
from postroad.wire.hello import decode_hello, encode_hello

_TRACE = struct.Struct(">16s8sBH")

_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)

TRACE_BYTES_MAX = _TRACE.size + TRACESTATE_CHARS_MAX


def encode_trace_context(context: SpanContext) -> bytes:
    """Encode a trace context, which precedes the payload."""
    state = context.tracestate.encode("ascii", "ignore")[:TRACESTATE_CHARS_MAX]
    trace_id, span_id = bytes.fromhex(context.trace_id), bytes.fromhex(context.span_id)
    return _TRACE.pack(trace_id, span_id, context.flags, len(state)) + state


def split_trace_context(body: bytes, request_id: int) -> tuple[SpanContext | None, bytes]:
    """Return the trace context and the payload after it; the context is None if not valid."""
    if len(body) < _TRACE.size:
        raise MalformedFrameError(
            f"request {request_id} is shorter than its trace context", request_id
        )
    trace_id, span_id, flags, size = _TRACE.unpack_from(body)
    stop = _TRACE.size + size
    if stop > len(body):
        raise MalformedFrameError(
            f"request {request_id} is shorter than its trace context", request_id
        )
    if size:
        state = body[_TRACE.size : stop].decode("ascii", "replace")
        context = parse_traceparent(f"00-{trace_id.hex()}-{span_id.hex()}-{flags:02x}", state)
    elif trace_id == _NO_TRACE or span_id == _NO_SPAN:
        context = None
    else:
        context = SpanContext(trace_id.hex(), span_id.hex(), flags & SAMPLED)
    return context, body[stop:]


HEADER = struct.Struct(">IIIQ")
_HEADER_BYTES = HEADER.size
_unpack = HEADER.unpack_from
_LENGTH_BYTES = 4
# Length of a frame with neither subject nor payload.
_EMPTY_LENGTH = _HEADER_BYTES - _LENGTH_BYTES

ONE_WAY = 1
COMPRESSED = 2
RETRYABLE = 4
TRACED = 8

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
    PROOF = 8


# Type, flags and short as one number, for frames that carry no flag.
_PLAIN_REQUEST = FrameType.REQUEST << 24
_PLAIN_REPLY = FrameType.REPLY << 24
_STATUS_MAX = max(ReplyStatus)

# Numbers from here on are neither request nor reply.
_CONTROL = FrameType.HELLO << 24

_CONTROL_BODY_MAX: dict[int, int] = {
    FrameType.HELLO: HELLO_BYTES_MAX,
    FrameType.CANCEL: 0,
    FrameType.PING: 0,
    FrameType.PONG: 0,
    FrameType.GOODBYE: GOODBYE_BYTES_MAX,
    FrameType.PROOF: PROOF_BYTES,
}
# Decoding stops after these frames: compression is negotiated when they have been processed.
_NEGOTIATING = frozenset({FrameType.HELLO, FrameType.PROOF})

# Bounds of the subject cache of a connection, so that a peer cannot fill the memory.
_CACHED_SUBJECTS_MAX = 64
_CACHED_SUBJECT_BYTES_MAX = 128


class Version3Codec(Codec):
    """Version 3, either side."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.sender: Address | None = None
        # The hello of the peer as received, for its proof (3.7).
        self.hello_body = b""
        self.bytes_needed = _HEADER_BYTES
        # Decoded subjects by their bytes.
        self._subjects: dict[Bytes, str] = {}
        # Set after both hellos if both sides offer the same algorithm.
        self.compression: CompressionAlgorithm | None = None

    def decode(self, data: Bytes, frames: list[Frame]) -> int:
        position = 0
        end = len(data)
        unpack = _unpack
        length_max = self.frame_bytes_max + _EMPTY_LENGTH
        self.bytes_needed = _HEADER_BYTES
        while end - position >= _HEADER_BYTES:
            length, kind, word, id = unpack(data, position)
            start = position + _HEADER_BYTES
            stop = position + _LENGTH_BYTES + length
            if not (_EMPTY_LENGTH <= length <= length_max and _PLAIN_REQUEST <= kind < _CONTROL):
                self._check_header(length, kind)
            if stop > end:
                self.bytes_needed = stop - position
                break
            if kind == _PLAIN_REPLY:
                frames.append(ReplyFrame(id, 0, data[start:stop], word))  # type: ignore[arg-type]
            elif kind ^ _PLAIN_REQUEST <= SUBJECT_BYTES_MAX:
                split = start + (kind ^ _PLAIN_REQUEST)
                if split > stop:
                    raise MalformedFrameError(f"request {id} is shorter than its subject", id)
                raw = data[start:split]
                # Memoryviews come from large frames, where decoding the subject costs little.
                subject = self._subjects.get(raw) if type(raw) is bytes else None
                if subject is None:
                    subject = self._intern_subject(raw, id)
                frames.append(RequestFrame(id, subject, data[split:stop], word))  # type: ignore[arg-type]
            else:
                frames.append(self._decode_slow_path(kind, word, id, bytes(data[start:stop])))
                if kind >> 24 in _NEGOTIATING:
                    return int(stop)
            position = stop
        return position

    def _intern_subject(self, raw: Bytes, request_id: int) -> str:
        """Decode a subject and cache it: connections use few subjects, each very often."""
        subject = decode_utf8(raw, "subject", request_id)
        if len(raw) <= _CACHED_SUBJECT_BYTES_MAX:
            if len(self._subjects) >= _CACHED_SUBJECTS_MAX:
                self._subjects.clear()
            self._subjects[bytes(raw)] = subject
        return subject

    def _check_header(self, length: int, kind: int) -> None:
        """Raise if the header of a frame is not valid."""
        if length < _EMPTY_LENGTH:
            raise MalformedFrameError(f"frame of {length} bytes is shorter than its header")
        maximum: int | None = self.frame_bytes_max
        if not _PLAIN_REQUEST <= kind < _CONTROL:
            maximum = _CONTROL_BODY_MAX.get(kind >> 24)
        if maximum is None:
            raise MalformedFrameError(f"unknown frame type {kind >> 24}")
        check_frame_size(length - _EMPTY_LENGTH, maximum)

    def _decode_slow_path(self, kind: int, word: int, id: int, body: bytes) -> Frame:
        """Decode a frame with flags, a failed reply or a control frame."""
        type, flags, short = kind >> 24, kind >> 16 & 0xFF, kind & 0xFFFF
        if type == FrameType.REQUEST:
            if short > min(len(body), SUBJECT_BYTES_MAX):
                raise MalformedFrameError(f"request {id} has a subject of {short} bytes", id)
            subject = decode_utf8(body[:short], "subject", id)
            trace, rest = (
                split_trace_context(body[short:], id) if flags & TRACED else (None, body[short:])
            )
            payload = self._decompress_payload(rest, flags, id)
            check_frame_size(short + len(payload), self.frame_bytes_max)
            return RequestFrame(id, subject, payload, word, flags & ONE_WAY != 0, trace)
        if type == FrameType.REPLY:
            if short > _STATUS_MAX:
                raise MalformedFrameError(f"reply {id} has unknown status {short}")
            payload = self._decompress_payload(body, flags, None)
            return ReplyFrame(id, short, payload, word, flags & RETRYABLE != 0)
        return self._decode_control(type, word, id, body)

    def encode_request(
        self,
        out: list[bytes],
        id: int,
        subject: str,
        payload: bytes,
        timeout_ms: int,
        one_way: bool,
        trace: SpanContext | None = None,
    ) -> None:
        encoded = subject.encode()
        size = len(encoded)
        flags = ONE_WAY if one_way else 0
        if self.compression is not None:
            packed = compress_payload(self.compression, payload)
            if packed is not None:
                payload, flags = packed, flags | COMPRESSED
        if trace is not None:
            encoded, flags = encoded + encode_trace_context(trace), flags | TRACED
        length = _EMPTY_LENGTH + len(encoded) + len(payload)
        header = HEADER.pack(length, _PLAIN_REQUEST | flags << 16 | size, timeout_ms, id)
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
        header = HEADER.pack(length, _PLAIN_REPLY | flags << 16 | status, code, id)
        if length < JOIN_BYTES_MAX:
            out.append(header + payload)
        else:
            out += (header, payload)

    def encode_control(self, out: list[bytes], frame: Frame) -> None:
        if isinstance(frame, HelloFrame):
            out.append(_control(FrameType.HELLO, body=encode_hello(frame)))
        elif isinstance(frame, GoodbyeFrame):
            body = frame.reason.encode()[:GOODBYE_BYTES_MAX]
            body = body.decode("utf-8", "ignore").encode()
            out.append(_control(FrameType.GOODBYE, word=frame.code, body=body))
        elif isinstance(frame, CancelFrame):
            out.append(_control(FrameType.CANCEL, id=frame.id))
        elif isinstance(frame, PingFrame):
            out.append(_control(FrameType.PING, id=frame.id))
        elif isinstance(frame, PongFrame):
            out.append(_control(FrameType.PONG, id=frame.id))
        elif isinstance(frame, ProofFrame):
            out.append(_control(FrameType.PROOF, body=frame.proof))
        else:
            raise LocalProtocolError(f"version 3 has no frame for {type(frame).__name__}")

    def _decode_control(self, kind: int, word: int, id: int, body: bytes) -> Frame:
        if kind == FrameType.HELLO:
            hello = decode_hello(body)
            self.sender = hello.address
            self.hello_body = body
            return hello
        if kind == FrameType.GOODBYE:
            return GoodbyeFrame(word, decode_utf8(body, "goodbye"))
        if kind == FrameType.PROOF:
            if len(body) != PROOF_BYTES:
                raise MalformedFrameError(f"proof has {len(body)} bytes, not {PROOF_BYTES}")
            return ProofFrame(body)
        if kind == FrameType.CANCEL:
            return CancelFrame(id)
        return PingFrame(id) if kind == FrameType.PING else PongFrame(id)

    def _decompress_payload(self, packed: bytes, flags: int, request_id: int | None) -> bytes:
        if not flags & COMPRESSED:
            return packed
        if self.compression is None:
            raise MalformedFrameError(
                "payload is compressed, but no compression was negotiated", request_id
            )
        try:
            return decompress_payload(self.compression, packed, self.frame_bytes_max)
        except MalformedFrameError as error:
            raise MalformedFrameError(str(error), request_id) from None


def _control(kind: FrameType, *, word: int = 0, id: int = 0, body: bytes = b"") -> bytes:
    return HEADER.pack(_EMPTY_LENGTH + len(body), kind << 24, word, id) + body
