"""The body of a version 3 hello."""

from __future__ import annotations

from fuzz.samples import make_hello
from fuzz.target import Target, prefixes, require
from postroad.core.errors import RemoteProtocolError
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.wire import ConnectionRole
from postroad.wire.hello import decode_hello, encode_hello


def check_hello(data: bytes) -> None:
    """Any bytes are a hello or a RemoteProtocolError, cut off or not."""
    for body in (*prefixes(data), data):
        try:
            hello = decode_hello(body)
        except RemoteProtocolError:
            continue
        encoded = encode_hello(hello)
        if len(encoded) <= HELLO_BYTES_MAX:
            require(decode_hello(encoded) == hello, f"{hello} does not survive encoding")


def _seeds() -> list[bytes]:
    full = encode_hello(make_hello(ConnectionRole.CLIENT, ("zstd", "zlib")))
    later_field = b"\x01\x00\x00\x03abc"
    return [full, encode_hello(make_hello(ConnectionRole.SERVER)), full + later_field, full + full]


TARGETS = [Target("hello", check_hello, _seeds())]
