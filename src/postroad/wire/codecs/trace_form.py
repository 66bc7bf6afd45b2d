"""How a request of version 3 says which span it belongs to.

16  trace
8   span
u8  flags, as W3C Trace Context has them
u16 length of the tracestate, which follows in ASCII
"""

from __future__ import annotations

import struct

from postroad.core.errors import MalformedFrameError
from postroad.core.tracing import SAMPLED, TRACESTATE_CHARS_MAX, SpanContext, parse_traceparent

_TRACE = struct.Struct(">16s8sBH")

_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)

TRACE_BYTES_MAX = _TRACE.size + TRACESTATE_CHARS_MAX


def encode_trace_context(context: SpanContext) -> bytes:
    """The bytes that stand before the payload."""
    state = context.tracestate.encode("ascii", "ignore")[:TRACESTATE_CHARS_MAX]
    trace_id, span_id = bytes.fromhex(context.trace_id), bytes.fromhex(context.span_id)
    return _TRACE.pack(trace_id, span_id, context.flags, len(state)) + state


def split_trace_context(body: bytes, request_id: int) -> tuple[SpanContext | None, bytes]:
    """The context and what follows it; None if the peer wrote one that is not valid."""
    if len(body) < _TRACE.size:
        raise MalformedFrameError(f"request {request_id} is shorter than its trace", request_id)
    trace_id, span_id, flags, size = _TRACE.unpack_from(body)
    stop = _TRACE.size + size
    if stop > len(body):
        raise MalformedFrameError(f"request {request_id} is shorter than its trace", request_id)
    if size:
        state = body[_TRACE.size : stop].decode("ascii", "replace")
        context = parse_traceparent(f"00-{trace_id.hex()}-{span_id.hex()}-{flags:02x}", state)
    elif trace_id == _NO_TRACE or span_id == _NO_SPAN:
        context = None
    else:
        context = SpanContext(trace_id.hex(), span_id.hex(), flags & SAMPLED)
    return context, body[stop:]
