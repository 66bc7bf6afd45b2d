"""Unicast datagrams."""

from __future__ import annotations

from fuzz.samples import PREAMBLE
from fuzz.target import Target, prefixes, require
from postroad.core.errors import RemoteProtocolError
from postroad.wire import Datagram, decode_datagram, encode_datagram

# Deep nesting needs some length.
_BYTES_MAX = 4_096
_HEADER_BYTES = 8


def check_datagram(data: bytes) -> None:
    """Any bytes are a datagram or a RemoteProtocolError, cut off or not."""
    for datagram in (*prefixes(data), data, announce_truly(data)):
        try:
            message = decode_datagram(PREAMBLE, datagram)
        except RemoteProtocolError:
            continue
        again = decode_datagram(PREAMBLE, encode_datagram(PREAMBLE, message))
        require(again == message, f"{message} does not survive encoding")


def announce_truly(data: bytes) -> bytes:
    """The same body behind a header that fits, which chance alone would rarely hit."""
    body = data[_HEADER_BYTES:]
    return PREAMBLE + len(body).to_bytes(4, "big") + body


def _seeds() -> list[bytes]:
    messages = [
        Datagram("node-1", "127.0.0.1", 26_502, "gossip", b"hello"),
        Datagram("größe", "", 0, "", b""),
        Datagram("node-2", "host.example", 65_535, "x" * 300, bytes(700)),
    ]
    datagrams = [encode_datagram(PREAMBLE, message) for message in messages]
    # Six elements: later nodes may add some, and whatever they hold is skipped.
    extended = b"\x96" + datagrams[0][_HEADER_BYTES + 1 :]
    return [
        *datagrams,
        announce_truly(bytes(_HEADER_BYTES) + extended + b"\xc0"),
        announce_truly(bytes(_HEADER_BYTES) + extended + b"\x91" * 3_000 + b"\xc0"),
    ]


TARGETS = [Target("datagram", check_datagram, _seeds(), _BYTES_MAX)]
