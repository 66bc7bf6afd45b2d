"""Every error Postroad raises, in one tree.

    PostroadError
    ├── ConfigError (ValueError)                a setting is wrong: names it and what is valid
    │   └── InvalidJobError                     a pipeline job is wrong: names every mistake
    ├── UsageError (RuntimeError)               the API was called in a way that cannot work
    ├── MissingExtraError (ImportError)         an optional package is not installed
    ├── ProtocolError                           abstract
    │   ├── LocalProtocolError                  we asked for something the protocol forbids
    │   ├── MalformedPayloadError               a handler could not decode what it was sent
    │   └── RemoteProtocolError                 the peer broke the rules; closes its connection
    │       ├── MalformedFrameError
    │       ├── FrameTooLargeError
    │       ├── UnexpectedFrameError
    │       ├── HandshakeRejectedError          wrong cluster, no common version, wrong identity
    │       │   └── DuplicateNameHandshakeError  a peer with this node's own name
    │       └── PeerTimeoutError                handshake, frame or heartbeat took too long
    ├── ClusterError                            abstract
    │   ├── NameConflictError                   another live node has this node's name
    │   └── SlowConsumerError                   a reader of events was too slow for them
    ├── DurableError                            abstract
    │   ├── StoreError                          abstract: something is wrong with this node's store
    │   │   ├── StoreLockedError                another process works on it
    │   │   ├── StoreCorruptedError             it is damaged
    │   │   ├── StoreMismatchError              another node's, version or history
    │   │   └── StoreUnavailableError           disk full, connection lost: nothing was changed
    │   ├── SendRejectedError                   the message cannot be taken
    │   │   ├── OutboxFullError                 too much waits already
    │   │   └── IdempotencyConflictError        the same key with another content
    │   ├── StreamMismatchError                 abstract: two stores disagree on what was delivered
    │   │   ├── SenderStateLostError            the sender forgot what it had sent
    │   │   ├── ReceiverStateLostError          the receiver forgot what it had accepted
    │   │   └── StreamDivergedError             both remember, and differently
    │   ├── FencedError                         another bridge took over
    │   ├── TransactionAbortedError             a transaction ended before its user did
    │   ├── DeadLetterNotFoundError (LookupError)
    │   └── Reject                              raised by handlers: trying again cannot help
    └── MessagingError                          a request or message did not succeed
        ├── NotRunningError (RuntimeError)      this service is not started, or is stopping
        ├── MessageTooLargeError (ValueError)   larger than this connection carries
        ├── ConnectError (ConnectionError)      nobody reachable at that address
        ├── ConnectionClosedError (ConnectionError)
        │   ├── TlsError                        certificates or TLS settings do not fit
        │   ├── WrongPeerError                  another node answers at that address
        │   └── DuplicateNamePeerError          a node with this node's own name answers there
        ├── ReplyTimeoutError (TimeoutError)    no reply in time
        ├── RemoteDecodeError                   the peer could not parse our message
        ├── NoHandlerError                      the peer has no handler for the subject
        ├── RemoteHandlerError                  the peer's handler raised
        └── MemberNotFoundError (LookupError)   here or at the peer, the other is not a known member

Two attributes tell a caller what to do, so that nobody compares class names: `retryable`
(trying again later can help) and, on messaging errors, `outcome` (whether the peer may have
acted on the message). `code` is stable and travels in replies of protocol version 3.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from postroad.core.outcome import Outcome as Outcome
from postroad.core.timing import format_duration


class PostroadError(Exception):
    """Base of every error Postroad raises."""

    code: ClassVar[int] = 1000
    retryable: bool = False


class ConfigError(PostroadError, ValueError):
    """A setting is wrong; the text names it, its value and what is valid."""

    code = 1100


class InvalidJobError(ConfigError):
    """A pipeline job is wrong; `problems` has every mistake, each with the entry it is in."""

    code = 6100

    def __init__(self, detail: str, problems: Sequence[Any] = ()) -> None:
        super().__init__(detail)
        self.problems = list(problems)


class UsageError(PostroadError, RuntimeError):
    """The API was called in a way that cannot work."""

    code = 1200


class MissingExtraError(PostroadError, ImportError):
    """An optional package is needed and not installed."""

    code = 1300

    def __init__(self, extra: str, purpose: str) -> None:
        # By no name that an index would look up: there it may be somebody else's.
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which postroad was installed without: "
            f"pip install '.[{extra}]' in its repository"
        )
        self.extra = extra


class ProtocolError(PostroadError):
    """Abstract: raise LocalProtocolError, MalformedPayloadError or RemoteProtocolError."""

    code = 2000


class LocalProtocolError(ProtocolError):
    """This side asked for something the protocol forbids."""

    code = 2100


class MalformedPayloadError(ProtocolError):
    """Raised by a handler that cannot decode its payload; the caller sees RemoteDecodeError."""

    code = 2200


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. Its connection is closed, nothing else is touched."""

    code = 2300


class MalformedFrameError(RemoteProtocolError):
    """Bytes that are no frame.

    Attributes:
        request_id: the request they belong to, when that much could be read.
    """

    code = 2310

    def __init__(self, detail: str, request_id: int | None = None) -> None:
        super().__init__(detail)
        self.request_id = request_id


class FrameTooLargeError(RemoteProtocolError):
    """A frame announces more bytes than this side accepts."""

    code = 2320


class UnexpectedFrameError(RemoteProtocolError):
    """A well-formed frame that may not be sent by this peer, or not now."""

    code = 2330


class HandshakeRejectedError(RemoteProtocolError):
    """Wrong cluster, no common version, or not the node it should be."""

    code = 2340


class DuplicateNameHandshakeError(HandshakeRejectedError):
    """The peer has this node's own name: one of the two must be renamed or stopped.

    Attributes:
        host, port: where the peer says it is reached.
        incarnation: the number that tells its process from this one.
        is_member: whether it has joined the cluster.
    """

    code = 2341

    def __init__(
        self, detail: str, *, host: str, port: int, incarnation: int, is_member: bool
    ) -> None:
        super().__init__(detail)
        self.host = host
        self.port = port
        self.incarnation = incarnation
        self.is_member = is_member


class PeerTimeoutError(RemoteProtocolError):
    """The peer did not finish its handshake or frame, or sent no heartbeat, in time."""

    code = 2350


class ClusterError(PostroadError):
    """Abstract: something is wrong with this node's membership of its cluster."""

    code = 4000


class NameConflictError(ClusterError):
    """Another live node of the cluster has this node's name; this one may not join, or must leave.

    Attributes:
        name: the name both have.
        holder: the address of the node that keeps it.
    """

    code = 4100

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(
            f"node name {name!r} is taken by the live node at {holder}; "
            "give this node another name, or stop that one first"
        )
        self.name = name
        self.holder = holder


class SlowConsumerError(ClusterError):
    """Events came faster than they were read, and some were dropped; look at the members anew."""

    code = 4200


class DurableError(PostroadError):
    """Abstract: something durable could not be done."""

    code = 5000


class StoreError(DurableError):
    """Abstract: something is wrong with this node's store."""

    code = 5100


class StoreLockedError(StoreError):
    """Another process works on the store; one at a time may."""

    code = 5110
    retryable = True


class StoreCorruptedError(StoreError):
    """The store is damaged and was not opened; restore a backup, then start a new epoch."""

    code = 5120


class StoreMismatchError(StoreError):
    """The store is another node's, of a newer version, or lacks what this process committed."""

    code = 5130


class StoreUnavailableError(StoreError):
    """The store cannot write or answer now: a full disk, a lost connection. Nothing was changed."""

    code = 5140
    retryable = True


class SendRejectedError(DurableError):
    """The message cannot be taken; nothing was stored."""

    code = 5200


class OutboxFullError(SendRejectedError):
    """As much waits for the peer as this node keeps; try again when some was delivered."""

    code = 5210
    retryable = True


class IdempotencyConflictError(SendRejectedError):
    """A message with the same idempotency key and another content was posted before."""

    code = 5220


class StreamMismatchError(DurableError):
    """Abstract: two stores disagree on what was delivered; an operator must decide."""

    code = 5300


class SenderStateLostError(StreamMismatchError):
    """The receiver accepted more than the sender remembers: the sender's store is an old one."""

    code = 5310


class ReceiverStateLostError(StreamMismatchError):
    """The receiver remembers less than it acknowledged: its store is an old one."""

    code = 5320


class StreamDivergedError(StreamMismatchError):
    """Both sides remember the same number of messages, but not the same ones."""

    code = 5330


class FencedError(DurableError):
    """Another bridge took over the store; this one must stop."""

    code = 5400


class TransactionAbortedError(DurableError):
    """The transaction was rolled back before its user was done: it took too long."""

    code = 5500
    retryable = True


class DeadLetterNotFoundError(DurableError, LookupError):
    """No dead letter has that number; it may have been retried or dropped."""

    code = 5600


class Reject(DurableError):
    """Raised by a handler when trying again cannot help: the message becomes a dead letter."""

    code = 5700


class MessagingError(PostroadError):
    """A request or one-way message did not succeed.

    Attributes:
        outcome: whether the peer may have acted on the message.
        peer: the address it was meant for, with the node's name when known.
        subject: the subject it was sent to.
        elapsed_s: seconds from the call to the failure.
        timeout_s: seconds the caller allowed.
    """

    code = 3000
    outcome: Outcome = Outcome.UNKNOWN

    def __init__(
        self,
        detail: str,
        *,
        peer: str | None = None,
        subject: str | None = None,
        elapsed_s: float | None = None,
        timeout_s: float | None = None,
        outcome: Outcome | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.peer = peer
        self.subject = subject
        self.elapsed_s = elapsed_s
        self.timeout_s = timeout_s
        if outcome is not None:
            self.outcome = outcome
        if retryable is not None:
            self.retryable = retryable

    def with_context(
        self, *, peer: str, subject: str, elapsed_s: float, timeout_s: float | None = None
    ) -> Self:
        """The same failure, told of one message."""
        told = copy.copy(self)
        told.peer = self.peer or peer
        told.subject = subject
        told.elapsed_s = elapsed_s
        told.timeout_s = timeout_s
        return told

    def __str__(self) -> str:
        words = []
        if self.subject is not None:
            words.append(f"subject {self.subject!r}")
        if self.peer is not None:
            words.append(f"to {self.peer}")
        if self.elapsed_s is not None:
            words.append(f"after {format_duration(self.elapsed_s)}")
        if self.timeout_s is not None:
            words.append(f"of {format_duration(self.timeout_s)} allowed")
        if not words:
            return self.detail
        return f"{self.detail} [{' '.join(words)}; outcome {self.outcome.value}]"


class NotRunningError(MessagingError, RuntimeError):
    """This service is not started, is stopping, or stopped while the request was in flight."""

    code = 3100
    outcome = Outcome.NOT_SENT


class MessageTooLargeError(MessagingError, ValueError):
    """The message is larger than this connection carries; raise `frame_bytes_max` on both sides."""

    code = 3200
    outcome = Outcome.NOT_SENT


class ConnectError(MessagingError, ConnectionError):
    """Refused, unreachable, unresolvable, or no connection in time. Nothing was sent."""

    code = 3300
    outcome = Outcome.NOT_SENT
    retryable = True


class ConnectionClosedError(MessagingError, ConnectionError):
    """The connection closed before the reply; `outcome` says whether the request had been written.

    Retryable only while nothing was sent: a blind retry of an unknown outcome makes duplicates.
    """

    code = 3400

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail, **facts)
        if facts.get("outcome") is Outcome.NOT_SENT and facts.get("retryable") is None:
            self.retryable = True


class TlsError(ConnectionClosedError):
    """TLS could not be agreed: wrong trust root, expired certificate, or one side without TLS."""

    code = 3410
    outcome = Outcome.NOT_SENT


class WrongPeerError(ConnectionClosedError):
    """Another node than the expected one answers at that address."""

    code = 3420
    outcome = Outcome.NOT_SENT
    retryable = True


class DuplicateNamePeerError(ConnectionClosedError):
    """A node with this node's own name answers there.

    Attributes:
        incarnation: the number that tells its process from this one.
        is_member: whether it has joined the cluster.
    """

    code = 3430
    outcome = Outcome.NOT_SENT
    incarnation: int = 0
    is_member: bool = False


class ReplyTimeoutError(MessagingError, TimeoutError):
    """No reply within the time the caller allowed."""

    code = 3500


class RemoteDecodeError(MessagingError):
    """The peer could not parse the message; sending the same again cannot help."""

    code = 3600
    outcome = Outcome.REPLIED


class NoHandlerError(MessagingError):
    """The peer has no handler for the subject; transient while it starts, stops or changes role."""

    code = 3700
    outcome = Outcome.REPLIED
    retryable = True


class RemoteHandlerError(MessagingError):
    """The peer's handler raised. `retryable` is what the peer said of it (version 3), else False.

    Attributes:
        remote_code: code of the Postroad error raised there, 0 when it was another exception
            or the peer speaks an older version.
    """

    code = 3800
    outcome = Outcome.REPLIED
    remote_code: int = 0


class MemberNotFoundError(MessagingError, LookupError):
    """No member of that name is known here, or the peer does not know this node as a member yet.

    Either can be transient: news of members need a moment to travel. `outcome` is NOT_SENT in the
    first case and KNOWN in the second; no handler has run in either.
    """

    code = 3900
    outcome = Outcome.NOT_SENT
    retryable = True
