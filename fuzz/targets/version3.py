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
from fuzz.target import Target
from postroad.wire import Frame, Role
from postroad.wire.codecs import Codec, Version3Codec

_FRAMES: list[Frame] = [
    make_hello(Role.CLIENT, ("zstd", "zlib")),
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


TARGETS = [_target(compression) for compression in (None, *ALGORITHMS)]
