"""Datagrams of a cluster with a secret: proven, meant for one process, and taken once.

u8 mark, u8 kind, 16 bytes sender, 16 bytes receiver, u64 number, content, 32 bytes proof

Sender and receiver are epochs: bytes that a process draws when it starts and that nobody else has.
A message is taken by the process whose epoch it names and by no other, and its number only once, so
that a recording is worth nothing, whenever and wherever it is played. Whoever does not know the
epoch of another asks for it first; answers are as long as questions, and a datagram to an epoch
that is over is answered with the new one.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from postroad.core.cluster_secret import PROOF_BYTES, ClusterSecret
from postroad.core.errors import HandshakeRejectedError, MalformedFrameError
from postroad.core.names import Address

Key = TypeVar("Key")
Value = TypeVar("Value")

MARK = 0xC1
"""First byte of what is sealed; MessagePack has no use for it, so a plain one never begins so."""

EPOCH_BYTES = 16
_HEAD = struct.Struct(f">BB{EPOCH_BYTES}s{EPOCH_BYTES}sQ")
SEAL_BYTES = _HEAD.size + PROOF_BYTES
"""What the seal adds to a datagram."""
_PURPOSE = b"datagram"
_UNKNOWN = bytes(EPOCH_BYTES)

# Others whose epochs are known, and processes whose numbers are; the longest unused are forgotten,
# which costs a question, or the memory of what a process sent that has been silent since.
_PEERS_MAX = 8_192
# How far numbers may arrive out of order.
_WINDOW = 256
# Datagrams kept for a node that was asked for its epoch, and for how long.
_HELD_MAX = 8
_HELD_S = 2.0
# Numbers whose receiver is remembered, to know who answers.
_SENT_MAX = 4_096


class _Kind(enum.IntEnum):
    MESSAGE = 1
    QUESTION = 2
    ANSWER = 3


class Unsealed(NamedTuple):
    """What a datagram was."""

    body: bytes | None = None
    """A message."""
    answer: bytes | None = None
    """What to send back to where it came from."""
    target: Address | None = None
    held: tuple[bytes, ...] = ()
    """What can be sent to the target now that its epoch is known; to be sealed."""


class _Peer:
    """An address that datagrams are sent to."""

    __slots__ = ("answered", "epoch", "held")

    def __init__(self) -> None:
        self.epoch: bytes | None = None
        # Number of the latest datagram that it has told its epoch for.
        self.answered = 0
        self.held: deque[tuple[bytes, float]] = deque(maxlen=_HELD_MAX)


class _Numbers:
    """The numbers that came from one process."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = 0
        # A bit for each of the latest numbers, the highest first.
        self._seen = 0

    def take(self, number: int) -> bool:
        """Whether it has not come before, as far as can be told."""
        ahead = number - self._highest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, _WINDOW) | 1) & ((1 << _WINDOW) - 1)
            self._highest = number
            return True
        if ahead <= -_WINDOW or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True


class Seal:
    """Seals what one process sends, and opens what it receives.

    Args:
        secret: of the cluster.
        epoch: random bytes, other ones for every process.
    """

    def __init__(self, secret: ClusterSecret, epoch: bytes) -> None:
        self._secret = secret
        self._epoch = epoch[:EPOCH_BYTES]
        self._number = 0
        self._sent: list[Address | None] = [None] * _SENT_MAX
        self._peers: dict[Address, _Peer] = {}
        self._numbers: dict[bytes, _Numbers] = {}

    def seal(self, target: Address, body: bytes, now: float) -> bytes:
        """What to send to the target: the body, or a question if the body must wait for it."""
        peer = _recall(self._peers, target, _Peer)
        self._number += 1
        self._sent[self._number % _SENT_MAX] = target
        if peer.epoch is None:
            peer.held.append((body, now))
            return self._prove(_Kind.QUESTION, _UNKNOWN, self._number)
        return self._prove(_Kind.MESSAGE, peer.epoch, self._number, body)

    def open(self, data: bytes, source: Address, now: float) -> Unsealed:
        """Read what came from an address; raises RemoteProtocolError if it is to be dropped."""
        if len(data) < SEAL_BYTES or data[0] != MARK:
            raise HandshakeRejectedError(
                "a datagram that does not prove the secret of the cluster: "
                "node.secret must be the same in all its nodes"
            )
        if not self._secret.verify(data[-PROOF_BYTES:], _PURPOSE, data[:-PROOF_BYTES]):
            raise HandshakeRejectedError(
                "a datagram that proves another secret: "
                "node.secret must be the same in all nodes of a cluster"
            )
        _, kind, sender, receiver, number = _HEAD.unpack_from(data)
        if kind == _Kind.QUESTION:
            return Unsealed(answer=self._prove(_Kind.ANSWER, sender, number))
        if kind == _Kind.ANSWER:
            return self._learn(sender, receiver, number, now)
        if kind != _Kind.MESSAGE:
            raise MalformedFrameError(f"a sealed datagram of unknown kind {kind}")
        if receiver != self._epoch:
            # Meant for the process before this one, or for nobody here.
            return Unsealed(answer=self._prove(_Kind.ANSWER, sender, number))
        if not _recall(self._numbers, sender, _Numbers).take(number):
            raise HandshakeRejectedError(f"datagram {number} of its process has come before")
        _recall(self._peers, source, _Peer).epoch = sender
        return Unsealed(body=data[_HEAD.size : -PROOF_BYTES])

    def _learn(self, sender: bytes, receiver: bytes, number: int, now: float) -> Unsealed:
        """Somebody told its epoch; believed if it was asked just now, and not older than known."""
        is_recent = self._number - _SENT_MAX < number <= self._number
        target = self._sent[number % _SENT_MAX] if receiver == self._epoch and is_recent else None
        peer = None if target is None else self._peers.get(target)
        if peer is None or number <= peer.answered:
            return Unsealed()
        peer.epoch, peer.answered = sender, number
        held = tuple(body for body, since in peer.held if now - since <= _HELD_S)
        peer.held.clear()
        return Unsealed(target=target, held=held)

    def _prove(self, kind: _Kind, receiver: bytes, number: int, content: bytes = b"") -> bytes:
        said = _HEAD.pack(MARK, kind, self._epoch, receiver, number) + content
        return said + self._secret.prove(_PURPOSE, said)


def _recall(known: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """What is known of the key, as the latest used; the longest unused makes room for it."""
    value = known.pop(key, None)
    if value is None:
        value = make()
        if len(known) >= _PEERS_MAX:
            del known[next(iter(known))]
    known[key] = value
    return value
