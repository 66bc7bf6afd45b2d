"""Unicast datagrams: preamble, length, then sender, subject and payload as MessagePack (5).

i32 preamble, i32 length of the rest, [sender name, host, port, subject, payload]

In a cluster with a secret the rest is sealed: authenticated and protected against replay.

u8 mark, u8 kind, 16 bytes sender, 16 bytes receiver, u64 number, content, 32 bytes proof

Sender and receiver are epochs: random bytes that each process draws when it starts. A message is
accepted only by the process whose epoch it names, and each number only once, so that a recorded
datagram cannot be replayed, neither later nor to another process. A sender that does not know the
epoch of a receiver requests it first. An epoch reply is as long as its request, so it cannot
amplify traffic; a datagram to an outdated epoch is answered with the new one.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from postroad.core.cluster_secret import PROOF_BYTES, ClusterSecret
from postroad.core.errors import (
    FrameTooLargeError,
    HandshakeRejectedError,
    LocalProtocolError,
    MalformedFrameError,
)
from postroad.core.limits import DATAGRAM_BYTES_MAX
from postroad.core.names import Address

MARK = 0xC1
"""First byte of a sealed body; MessagePack never uses it, so no plain body starts with it."""

_LENGTH = struct.Struct(">i")
_PREAMBLE_BYTES = 4
_HEADER_BYTES = _PREAMBLE_BYTES + _LENGTH.size


class Datagram(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unicast message."""

    name: str
    host: str
    port: int
    subject: str
    payload: bytes

    @property
    def sender(self) -> Address:
        return Address(self.host, self.port)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Datagram)


def encode_datagram(preamble: bytes, datagram: Datagram) -> bytes:
    """Return the bytes to send; raise LocalProtocolError if they exceed a datagram."""
    return frame_datagram(preamble, encode_body(datagram))


def decode_datagram(preamble: bytes, data: bytes) -> Datagram:
    """Decode a received datagram; raise RemoteProtocolError if it is not valid."""
    body = unframe_datagram(preamble, data)
    if body[:1] == bytes([MARK]):
        raise HandshakeRejectedError(
            "the datagram is sealed with a cluster secret and this node has none: set node.secret"
        )
    return decode_body(body)


def encode_body(datagram: Datagram) -> bytes:
    """Encode sender, subject and payload."""
    return _encoder.encode(datagram)


def decode_body(body: bytes) -> Datagram:
    """Decode sender, subject and payload."""
    try:
        datagram = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrameError(f"cannot decode the datagram body: {error}") from None
    if not 0 <= datagram.port <= 65535:
        raise MalformedFrameError(f"datagram port {datagram.port} is not 0 to 65535")
    return datagram


def frame_datagram(preamble: bytes, body: bytes) -> bytes:
    """Add the header to a plain or sealed body."""
    check_body_size(len(body))
    return preamble + _LENGTH.pack(len(body)) + body


def check_body_size(body_bytes: int) -> None:
    """Raise LocalProtocolError if the body exceeds a datagram."""
    size = _HEADER_BYTES + body_bytes
    if size > DATAGRAM_BYTES_MAX:
        raise LocalProtocolError(f"a datagram of {size} bytes exceeds {DATAGRAM_BYTES_MAX}")


def unframe_datagram(preamble: bytes, data: bytes) -> bytes:
    """Check the header and return the body; raise RemoteProtocolError if it is not valid."""
    if len(data) > DATAGRAM_BYTES_MAX:
        raise FrameTooLargeError(f"a datagram of {len(data)} bytes exceeds {DATAGRAM_BYTES_MAX}")
    if not data.startswith(preamble):
        raise HandshakeRejectedError(f"datagram of another cluster, preamble {data[:4].hex(' ')}")
    if len(data) < _HEADER_BYTES:
        raise MalformedFrameError(f"a datagram of {len(data)} bytes is shorter than its header")
    (length,) = _LENGTH.unpack_from(data, _PREAMBLE_BYTES)
    if length != len(data) - _HEADER_BYTES:
        raise MalformedFrameError(
            f"datagram announces {length} bytes, has {len(data) - _HEADER_BYTES}"
        )
    return data[_HEADER_BYTES:]


Key = TypeVar("Key")
Value = TypeVar("Value")

EPOCH_BYTES = 16
_HEAD = struct.Struct(f">BB{EPOCH_BYTES}s{EPOCH_BYTES}sQ")
SEAL_BYTES = _HEAD.size + PROOF_BYTES
"""Size that the seal adds to a datagram."""
_PURPOSE = b"datagram"
_UNKNOWN = bytes(EPOCH_BYTES)

# Limit of the known peers and of the known senders; the least recently used are evicted. That costs
# an epoch request, or the replay protection of a process that has been silent since.
_PEERS_MAX = 8_192
# How far numbers may arrive out of order.
_WINDOW = 256
# Datagrams queued for a peer while its epoch is requested, and for how long.
_QUEUED_MAX = 8
_QUEUED_S = 2.0
# Numbers whose target is remembered, to match epoch replies.
_SENT_MAX = 4_096


class _Kind(enum.IntEnum):
    MESSAGE = 1
    EPOCH_REQUEST = 2
    EPOCH_REPLY = 3


class Unsealed(NamedTuple):
    """Result of opening a sealed datagram."""

    body: bytes | None = None
    """The body of a message."""
    answer: bytes | None = None
    """A datagram to send back to the source."""
    target: Address | None = None
    held: tuple[bytes, ...] = ()
    """Queued bodies to seal and send to the target, now that its epoch is known."""


class _Peer(msgspec.Struct):
    """State of an address that datagrams are sent to."""

    epoch: bytes | None = None
    answered: int = 0
    """Number of the latest datagram that was answered with an epoch."""
    held: deque[tuple[bytes, float]] = msgspec.field(
        default_factory=lambda: deque(maxlen=_QUEUED_MAX)
    )


class _ReplayWindow(msgspec.Struct):
    """Replay window: the numbers received from one process."""

    highest: int = 0
    seen: int = 0
    """One bit for each of the latest numbers; bit 0 is the highest number."""

    def accept(self, number: int) -> bool:
        """Record a number; return False if it was received before or is older than the window."""
        ahead = number - self.highest
        if ahead > 0:
            self.seen = (self.seen << min(ahead, _WINDOW) | 1) & ((1 << _WINDOW) - 1)
            self.highest = number
            return True
        if ahead <= -_WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


class Seal:
    """Seals the datagrams that one process sends and opens those it receives."""

    def __init__(self, secret: ClusterSecret, epoch: bytes) -> None:
        self._secret = secret
        self._epoch = epoch[:EPOCH_BYTES]
        self._number = 0
        self._sent: list[Address | None] = [None] * _SENT_MAX
        self._peers: dict[Address, _Peer] = {}
        self._windows: dict[bytes, _ReplayWindow] = {}

    def seal(self, target: Address, body: bytes, now: float) -> bytes:
        """Return the sealed body, or an epoch request while the epoch of the target is unknown."""
        peer = _get_or_create(self._peers, target, _Peer)
        self._number += 1
        self._sent[self._number % _SENT_MAX] = target
        if peer.epoch is None:
            peer.held.append((body, now))
            return self._prove(_Kind.EPOCH_REQUEST, _UNKNOWN, self._number)
        return self._prove(_Kind.MESSAGE, peer.epoch, self._number, body)

    def open(self, data: bytes, source: Address, now: float) -> Unsealed:
        """Open a received datagram; raise RemoteProtocolError if it must be dropped."""
        if len(data) < SEAL_BYTES or data[0] != MARK:
            raise HandshakeRejectedError(
                "the datagram has no proof of the cluster secret; "
                "set the same node.secret on all nodes of a cluster"
            )
        if not self._secret.verify(data[-PROOF_BYTES:], _PURPOSE, data[:-PROOF_BYTES]):
            raise HandshakeRejectedError(
                "the datagram was sealed with another secret; "
                "set the same node.secret on all nodes of a cluster"
            )
        _, kind, sender, receiver, number = _HEAD.unpack_from(data)
        if kind == _Kind.EPOCH_REQUEST:
            return Unsealed(answer=self._prove(_Kind.EPOCH_REPLY, sender, number))
        if kind == _Kind.EPOCH_REPLY:
            return self._apply_epoch(sender, receiver, number, now)
        if kind != _Kind.MESSAGE:
            raise MalformedFrameError(f"sealed datagram has unknown kind {kind}")
        if receiver != self._epoch:
            # The message names the epoch of an earlier process at this address, or an unknown one.
            return Unsealed(answer=self._prove(_Kind.EPOCH_REPLY, sender, number))
        if not _get_or_create(self._windows, sender, _ReplayWindow).accept(number):
            raise HandshakeRejectedError(f"datagram {number} from {source} was received before")
        _get_or_create(self._peers, source, _Peer).epoch = sender
        return Unsealed(body=data[_HEAD.size : -PROOF_BYTES])

    def _apply_epoch(self, sender: bytes, receiver: bytes, number: int, now: float) -> Unsealed:
        """Apply an epoch reply if it matches a recent request and is newer than the known epoch."""
        is_recent = self._number - _SENT_MAX < number <= self._number
        target = self._sent[number % _SENT_MAX] if receiver == self._epoch and is_recent else None
        peer = None if target is None else self._peers.get(target)
        if peer is None or number <= peer.answered:
            return Unsealed()
        peer.epoch, peer.answered = sender, number
        queued = tuple(body for body, since in peer.held if now - since <= _QUEUED_S)
        peer.held.clear()
        return Unsealed(target=target, held=queued)

    def _prove(self, kind: _Kind, receiver: bytes, number: int, content: bytes = b"") -> bytes:
        message = _HEAD.pack(MARK, kind, self._epoch, receiver, number) + content
        return message + self._secret.prove(_PURPOSE, message)


def _get_or_create(entries: dict[Key, Value], key: Key, create: Callable[[], Value]) -> Value:
    """Return the entry of the key as the most recently used; evict the oldest if full."""
    value = entries.pop(key, None)
    if value is None:
        value = create()
        if len(entries) >= _PEERS_MAX:
            del entries[next(iter(entries))]
    entries[key] = value
    return value
