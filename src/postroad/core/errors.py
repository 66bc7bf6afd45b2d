"""Every error Postroad raises, in one tree.

    PostroadError
    ├── ConfigError (ValueError)                a setting is wrong: names it and what is valid
    │   └── InvalidJobError                     a pipeline job is wrong: names every mistake
    ├── UsageError (RuntimeError)               the API was called in a way that cannot work
    ├── MissingExtraError (ImportError)         an optional package is not installed
    ├── ProtocolError                           abstract
    │   ├── LocalProtocolError                  this side broke the protocol
    │   ├── MalformedPayloadError               a handler could not decode its payload
    │   └── RemoteProtocolError                 the peer broke the protocol; closes its connection
    │       ├── MalformedFrameError
    │       ├── FrameTooLargeError
    │       ├── UnexpectedFrameError
    │       ├── HandshakeRejectedError          wrong cluster, no common version, wrong identity
    │       │   └── DuplicateNameHandshakeError  a peer with this node's own name
    │       └── PeerTimeoutError                handshake, frame or heartbeat took too long
    ├── ClusterError                            abstract
    │   ├── NameConflictError                   another live node has this node's name
    │   └── SlowConsumerError                   events were dropped, the reader was too slow
    ├── DurableError                            abstract
    │   ├── StoreError                          abstract: something is wrong with this node's store
    │   │   ├── StoreLockedError                another process has it open
    │   │   ├── StoreCorruptedError             it is damaged
    │   │   ├── StoreMismatchError              another node's, version or history
    │   │   └── StoreUnavailableError           disk full, connection lost: nothing was changed
    │   ├── SendRejectedError                   the message was not accepted
    │   │   ├── OutboxFullError                 too many messages wait already
    │   │   └── IdempotencyConflictError        the same key with another content
    │   ├── StreamMismatchError                 abstract: two stores disagree on what was delivered
    │   │   ├── SenderStateLostError            the sender has an older state
    │   │   ├── ReceiverStateLostError          the receiver has an older state
    │   │   └── StreamDivergedError             both differ in content
    │   ├── FencedError                         another bridge took over
    │   ├── TransactionAbortedError             the transaction was rolled back
    │   ├── DeadLetterNotFoundError (LookupError)
    │   └── Reject                              raised by handlers: trying again cannot help
    └── MessagingError                          a request or message did not succeed
        ├── NotRunningError (RuntimeError)      this service is not started, or is stopping
        ├── MessageTooLargeError (ValueError)   larger than this connection carries
        ├── ConnectError (ConnectionError)      no connection to that address
        ├── ConnectionClosedError (ConnectionError)
        │   ├── TlsError                        certificates or TLS settings do not fit
        │   ├── WrongPeerError                  another node answers at that address
        │   └── DuplicateNamePeerError          a node with this node's own name answers there
        ├── ReplyTimeoutError (TimeoutError)    no reply in time
        ├── RemoteDecodeError                   the peer could not decode the message
        ├── NoHandlerError                      the peer has no handler for the subject
        ├── RemoteHandlerError                  the peer's handler raised
        └── MemberNotFoundError (LookupError)   the member is unknown here or at the peer

Two attributes say how a caller can react, so that none needs to compare classes: `retryable`
(a later retry can help) and, on messaging errors, `outcome` (whether the peer may have processed
the message). `code` is stable and is sent in replies of protocol version 3.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from postroad.core.outcome import Outcome as Outcome
from postroad.core.timing import format_duration


class PostroadError(Exception):
    """Base class of all errors that Postroad raises."""

    code: ClassVar[int] = 1000
    retryable: bool = False


class ConfigError(PostroadError, ValueError):
    """A setting is not valid; the message names it, its value and the valid values."""

    code = 1100


class InvalidJobError(ConfigError):
    """A pipeline job is not valid; `problems` lists every mistake with its entry."""

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
        # The package is on no index; its name there may belong to another project.
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which postroad was installed without: "
            f"pip install '.[{extra}]' in a clone of its repository, or 'FILE.whl[{extra}]'"
        )
        self.extra = extra


class ProtocolError(PostroadError):
    """Abstract: raise LocalProtocolError, MalformedPayloadError or RemoteProtocolError."""

    code = 2000


class LocalProtocolError(ProtocolError):
    """This side attempted an operation that the protocol forbids."""

    code = 2100


class MalformedPayloadError(ProtocolError):
    """Raised by a handler that cannot decode its payload; the caller sees RemoteDecodeError."""

    code = 2200


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. Only its connection is closed."""

    code = 2300


class MalformedFrameError(RemoteProtocolError):
    """The received bytes are not a valid frame.

    Attributes:
        request_id: id of the request, if it could be decoded, else None.
    """

    code = 2310

    def __init__(self, detail: str, request_id: int | None = None) -> None:
        super().__init__(detail)
        self.request_id = request_id


class FrameTooLargeError(RemoteProtocolError):
    """A frame announces more bytes than this side accepts."""

    code = 2320


class UnexpectedFrameError(RemoteProtocolError):
    """A valid frame that this peer may not send, or not in the current state."""

    code = 2330


class HandshakeRejectedError(RemoteProtocolError):
    """The peer has another cluster, no common version, or another identity than expected."""

    code = 2340


class DuplicateNameHandshakeError(HandshakeRejectedError):
    """The peer has the name of this node: rename or stop one of the two.

    Attributes:
        host, port: the address that the peer advertises.
        incarnation: number of the process of the peer; differs from that of this one.
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
    """Another live member has the name of this node, which cannot join or must leave.

    Attributes:
        name: the name both have.
        holder: the address of the node that keeps the name.
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
    """Events were dropped because they were read too slowly; read the member list again."""

    code = 4200


class DurableError(PostroadError):
    """Abstract: an operation of the durable layer failed."""

    code = 5000


class StoreError(DurableError):
    """Abstract: something is wrong with this node's store."""

    code = 5100


class StoreLockedError(StoreError):
    """Another process has the store open; only one may."""

    code = 5110
    retryable = True


class StoreCorruptedError(StoreError):
    """The store is damaged and was not opened; restore a backup, then start a new epoch."""

    code = 5120


class StoreMismatchError(StoreError):
    """The store belongs to another node, has a newer version, or lacks committed data."""

    code = 5130


class StoreUnavailableError(StoreError):
    """The store cannot read or write now (disk full, connection lost). Nothing was changed."""

    code = 5140
    retryable = True


class SendRejectedError(DurableError):
    """The message was not accepted; nothing was stored."""

    code = 5200


class OutboxFullError(SendRejectedError):
    """The outbox limit for the peer is reached; retry after some messages were delivered."""

    code = 5210
    retryable = True


class IdempotencyConflictError(SendRejectedError):
    """A message with the same idempotency key and different content was sent before."""

    code = 5220


class StreamMismatchError(DurableError):
    """Abstract: two stores disagree on what was delivered; an operator must decide."""

    code = 5300


class SenderStateLostError(StreamMismatchError):
    """The receiver has more than the sender recorded: the sender's store is an old backup."""

    code = 5310


class ReceiverStateLostError(StreamMismatchError):
    """The receiver has less than it acknowledged: its store is an old backup."""

    code = 5320


class StreamDivergedError(StreamMismatchError):
    """Both stores have the same number of messages with different content."""

    code = 5330


class FencedError(DurableError):
    """A newer bridge holds the fencing token; this one must stop."""

    code = 5400


class TransactionAbortedError(DurableError):
    """The transaction exceeded its timeout and was rolled back."""

    code = 5500
    retryable = True


class DeadLetterNotFoundError(DurableError, LookupError):
    """No dead letter has this id; it may have been retried or dropped."""

    code = 5600


class Reject(DurableError):
    """Raised by a handler when a retry cannot help: the message becomes a dead letter."""

    code = 5700


class MessagingError(PostroadError):
    """A request or one-way message failed.

    Attributes:
        outcome: whether the peer may have processed the message.
        peer: the target address, with the node name if known.
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
        """Return a copy of the error with the context of one message."""
        error = copy.copy(self)
        error.peer = self.peer or peer
        error.subject = subject
        error.elapsed_s = elapsed_s
        error.timeout_s = timeout_s
        return error

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
    """The service is not started, is stopping, or stopped during the request."""

    code = 3100
    outcome = Outcome.NOT_SENT


class MessageTooLargeError(MessagingError, ValueError):
    """The message exceeds the limit of the connection; raise `frame_bytes_max` on both sides."""

    code = 3200
    outcome = Outcome.NOT_SENT


class ConnectError(MessagingError, ConnectionError):
    """Refused, unreachable, unresolvable, or no connection in time. Nothing was sent."""

    code = 3300
    outcome = Outcome.NOT_SENT
    retryable = True


class ConnectionClosedError(MessagingError, ConnectionError):
    """The connection closed before the reply; `outcome` says whether the request was written.

    Retryable only if nothing was sent: a retry after an unknown outcome can cause duplicates.
    """

    code = 3400

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail, **facts)
        if facts.get("outcome") is Outcome.NOT_SENT and facts.get("retryable") is None:
            self.retryable = True


class TlsError(ConnectionClosedError):
    """The TLS negotiation failed: untrusted or expired certificate, or one side without TLS."""

    code = 3410
    outcome = Outcome.NOT_SENT


class WrongPeerError(ConnectionClosedError):
    """Another node than the expected one answers at that address."""

    code = 3420
    outcome = Outcome.NOT_SENT
    retryable = True


class DuplicateNamePeerError(ConnectionClosedError):
    """A node with the name of this node answers at that address.

    Attributes:
        incarnation: number of the process of the peer; differs from that of this one.
        is_member: whether it has joined the cluster.
    """

    code = 3430
    outcome = Outcome.NOT_SENT
    incarnation: int = 0
    is_member: bool = False


class ReplyTimeoutError(MessagingError, TimeoutError):
    """No reply arrived within the timeout of the caller."""

    code = 3500


class RemoteDecodeError(MessagingError):
    """The peer could not decode the message; a retry cannot help."""

    code = 3600
    outcome = Outcome.REPLIED


class NoHandlerError(MessagingError):
    """The peer has no handler for the subject; transient while it starts, stops or changes role."""

    code = 3700
    outcome = Outcome.REPLIED
    retryable = True


class RemoteHandlerError(MessagingError):
    """The peer's handler raised. `retryable` comes from the peer (version 3), else it is False.

    Attributes:
        remote_code: code of the Postroad error raised there, 0 for other exceptions and for
            peers of an older version.
    """

    code = 3800
    outcome = Outcome.REPLIED
    remote_code: int = 0


class MemberNotFoundError(MessagingError, LookupError):
    """No member of that name is known here, or the peer does not know this node as a member yet.

    Both can be transient until membership gossip arrives. `outcome` is NOT_SENT in the first case
    and REPLIED in the second; no handler has run in either.
    """

    code = 3900
    outcome = Outcome.NOT_SENT
    retryable = True
