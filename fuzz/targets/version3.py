"""Version 3, with and without an agreed compression."""

from __future__ import annotations

from functools import partial

from fuzz.samples import (
    ALGORITHMS,
    CONTROLS,
    LARGE,
    LIMITS,
    REPLIES,
    REQUESTS,
    encode_all,
    make_hello,
)
from fuzz.streams import check_stream
from fuzz.target import Target, prefixes, require
from postroad.core.errors import MalformedFrameError
from postroad.core.tracing import SpanContext
from postroad.wire import ConnectionRole, Frame
from postroad.wire.codecs import Codec, Version3Codec
from postroad.wire.codecs.version3 import encode_trace_context, split_trace_context

_FRAMES: list[Frame] = [
    make_hello(ConnectionRole.CLIENT, ("zstd", "zlib")),
    *REQUESTS,
    *REPLIES,
    *CONTROLS,
]

# Replies that succeeded and yet carry an error code, without and with a flag.
_ODD = [
    bytes.fromhex(f"00000010 02{flags}0000 00000005 0000000000000001") for flags in ("00", "01")
]


def make_codec(compression: str | None) -> Codec:
    """A codec after the hellos."""
    codec = Version3Codec(LIMITS.frame_bytes_max)
    codec.compression = ALGORITHMS[compression] if compression else None
    return codec


def _target(compression: str | None) -> Target:
    make = partial(make_codec, compression)
    frames = [*_FRAMES, *LARGE.values()] if compression else _FRAMES
    seeds = [encode_all(make(), [frame]) for frame in frames]
    return Target(
        f"codec-3-{compression or 'plain'}",
        partial(check_stream, make),
        [*seeds, *_ODD, encode_all(make(), _FRAMES[:3]), encode_all(make(), _FRAMES[5:])],
    )


def check_trace(data: bytes) -> None:
    """Any bytes begin with a trace or are malformed; what is read survives encoding."""
    for part in (*prefixes(data), data):
        try:
            trace, rest = split_trace_context(part, 1)
        except MalformedFrameError:
            continue
        require(part.endswith(rest), "the payload changed")
        if trace is not None:
            require(
                split_trace_context(encode_trace_context(trace) + rest, 1) == (trace, rest),
                f"{trace} changed",
            )


_TRACES = [
    SpanContext("0af7" * 8, "b7ad" * 4, 1),
    SpanContext("0af7" * 8, "b7ad" * 4, 0, "vendor=value"),
]

TARGETS = [
    *(_target(compression) for compression in (None, *ALGORITHMS)),
    Target(
        "codec-3-trace",
        check_trace,
        [encode_trace_context(trace) + b"payload" for trace in _TRACES],
    ),
]
