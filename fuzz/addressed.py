"""What the targets of versions 1 and 2 share, as the codecs do: a sender before all frames."""

from __future__ import annotations

from functools import partial

from fuzz.samples import ADDRESSES, HEARTBEATS, LIMITS, REPLIES, REQUESTS, encode_all, plain
from fuzz.streams import MakeCodec, check_stream
from fuzz.target import Target
from postroad.wire import ConnectionRole
from postroad.wire.codecs import Codec, DocumentedCodec, ZeebeCodec

_LONG_HOST = "a-host-with-a-long-name.example"

CodecClass = type[DocumentedCodec] | type[ZeebeCodec]


def addressed_target(profile: str, codec: CodecClass, version: int) -> Target:
    """The target of one version of one profile."""
    make = partial(_make_codec, codec, version)
    return Target(
        f"codec-{profile}-{version}",
        partial(check_stream, make),
        _seeds(make) + _foreign_senders(version),
    )


def _make_codec(codec: CodecClass, version: int) -> Codec:
    """A codec at the start of its connection."""
    address = ADDRESSES[ConnectionRole.CLIENT]
    return codec(version, address, address.host, LIMITS.frame_bytes_max)


def _seeds(make: MakeCodec) -> list[bytes]:
    frames = plain([*REQUESTS, *REPLIES, *HEARTBEATS])
    return [encode_all(make(), [frame]) for frame in frames] + [encode_all(make(), frames[:6])]


def _foreign_senders(version: int) -> list[bytes]:
    """Senders that this side would not write itself, before the start of a request."""
    host = _LONG_HOST.encode()
    senders = {
        1: [b"\x04\x7f\0\0\x01", b"\x10" + bytes(15) + b"\x01", b"\0\x10" + bytes(16)],
        2: [len(host).to_bytes(2, "big") + host, b"\0\0"],
    }
    return [sender + (26_502).to_bytes(4, "big") + b"\x01\x01\0\0\0" for sender in senders[version]]
