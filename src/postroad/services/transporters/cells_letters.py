"""Letters: packets to one node that travel as one message.

A message costs a domain much more than what is in it. So packets that are published within one
turn of the loop go together, in order: a MessagePack array of pairs, the word of the packet's
kind and its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from postroad.core.errors import MalformedPayloadError
from postroad.services.kinds import GOSSIP, Kind

WORDS = {kind: kind.value for kind in Kind if kind not in GOSSIP}
"""The kinds that are carried."""
KINDS = {word: kind for kind, word in WORDS.items()}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


def encode_letter(packets: Sequence[tuple[str, bytes]]) -> bytes:
    """The bytes to send."""
    return _encode(packets)


def decode_letter(data: bytes) -> list[tuple[str, bytes]]:
    """The packets in a letter; raises MalformedPayloadError for anything else.

    Words that are not known are left to the reader, so that they harm no other packet.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"no letter: {error}") from None
