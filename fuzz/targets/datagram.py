"""Unicast datagrams, plain ones and those of a cluster with a secret."""

from __future__ import annotations

from fuzz.samples import PREAMBLE
from fuzz.target import Target, prefixes, require
from postroad.core.cluster_secret import PROOF_BYTES, ClusterSecret
from postroad.core.errors import RemoteProtocolError
from postroad.core.names import Address
from postroad.wire import Datagram, decode_datagram, encode_datagram
from postroad.wire.datagram import EPOCH_BYTES, Seal

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


_SECRET = ClusterSecret("fuzz", "known to all of the cluster")
_THERE = Address("127.0.0.1", 26_502)


def check_sealed(data: bytes) -> None:
    """Whatever comes, proven or not: no datagram counts twice, and no answer is longer than it."""
    proven = data + _SECRET.prove(b"datagram", data)
    for sealed in (data, proven):
        seal = Seal(_SECRET, bytes(EPOCH_BYTES))
        seal.seal(_THERE, b"waits", 0.0)
        bodies = 0
        for _ in range(2):
            try:
                unsealed = seal.open(sealed, _THERE, 1.0)
            except RemoteProtocolError:
                continue
            bodies += unsealed.body is not None
            require(
                len(unsealed.answer or b"") <= len(sealed), "an answer longer than its question"
            )
        require(bodies <= 1, "a datagram was taken twice")


def _sealed_seeds() -> list[bytes]:
    ours, theirs = Seal(_SECRET, bytes(EPOCH_BYTES)), Seal(_SECRET, b"e" * EPOCH_BYTES)
    question = theirs.seal(_THERE, b"hello", 0.0)
    answer = ours.open(question, _THERE, 0.0).answer or b""
    held = theirs.open(answer, _THERE, 0.0).held
    message = theirs.seal(_THERE, held[0], 0.0)
    # Without their proofs, which are made anew for whatever the fuzzer changes.
    return [it[:-PROOF_BYTES] for it in (question, answer, message)]


TARGETS = [
    Target("datagram", check_datagram, _seeds(), _BYTES_MAX),
    Target("sealed-datagram", check_sealed, _sealed_seeds()),
]
