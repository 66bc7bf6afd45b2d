"""How a segment is one message: the codecs that media of messages know."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Segment

from .medium import decode_segment, encode_segment


class Codec(NamedTuple):
    """Both ways between a segment and its bytes."""

    encode: Callable[[Segment], bytes]
    decode: Callable[[bytes], Segment]


CODECS = {
    "json": Codec(msgspec.json.Encoder().encode, msgspec.json.Decoder(dict[str, Any]).decode),
    "msgpack": Codec(encode_segment, decode_segment),
}


def find_codec(name: str) -> Codec:
    """The codec of that name; raises ConfigError if there is none."""
    codec = CODECS.get(name)
    if codec is None:
        near = difflib.get_close_matches(str(name), CODECS, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CODECS)}"
        raise ConfigError(f"codec={name!r} is not known; {advice}")
    return codec
