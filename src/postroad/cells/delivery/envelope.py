"""The envelope of a message: source, destination, TTL, payload.

It differs from the envelope of dCache: the TTL is a remaining duration, not a time of a clock; a
request has no `in_reply_to`, so that a request to its own sender is not taken for its reply; an
error is a small reply, and is never replied to.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec

from postroad.cells.addresses import CellAddress, CellPath, copy_with, copy_with_two
from postroad.core.errors import ConfigError, LocalProtocolError
from postroad.core.limits import KIB, MIB

ID_BYTES = 16
SESSION_BYTES_MAX = 1 * KIB
CONTENT_TYPE_BYTES_MAX = 128
HEADERS_MAX = 32
HEADER_NAME_BYTES_MAX = 128
HEADER_VALUE_BYTES_MAX = 4 * KIB
HEADERS_BYTES_MAX = 8 * KIB
"""All headers together: error replies repeat them and must be small."""
TTL_MS_MAX = 1 << 53
ENVELOPE_BYTES_MAX = 4 * MIB
"""The default size of a frame."""

# Part of the TTL that is reserved for the reply: a tenth, and at most ten seconds.
_REPLY_SHARE = 10
_REPLY_MS_MAX = 10_000

_EMPTY_PATH = CellPath()

# Estimated memory of an envelope and of each of its hops.
_HEAD_BYTES = 500
_HOP_BYTES = 150

MessageId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
TtlMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=TTL_MS_MAX)]


class MessageKind(enum.IntEnum):
    """Kind of a message."""

    MESSAGE = 0
    """A request, a one-way message, a command or a publication."""
    REPLY = 1
    """A reply to a request."""
    ERROR = 2
    """A reply that reports a failure; its payload is a DeliveryFailure."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A routed message. It is immutable: changes make another envelope."""

    id: MessageId
    """Random, set by the sender; copies for several subscribers share it."""
    destination: CellPath
    source: CellPath = CellPath()
    """Sender and all forwarders so far: cells, and domains as `*@domain`."""
    kind: MessageKind = MessageKind.MESSAGE
    in_reply_to: MessageId | None = None
    """Id of the message that this one replies to; None for other kinds."""
    session: str | None = None
    """Correlation text for logs; replies repeat it."""
    ttl_ms: TtlMs | None = None
    """Remaining time to live; None if it never expires."""
    suppress_errors: bool = False
    """Whether a missing route is no error, as for publications."""
    wants_reply: bool = False
    """Whether the sender waits for a reply. Failures are reported for one-way messages as well."""
    headers: dict[str, str] | None = None
    """Headers of the user, and the trace context."""
    content_type: str = ""
    """Encoding of the payload."""
    payload: bytes = b""

    def __post_init__(self) -> None:
        # Runs for every received message, so the most common cases come first.
        if len(self.id) != ID_BYTES:
            raise ConfigError(_describe_id_fault(self.id))
        in_reply_to = self.in_reply_to
        if (in_reply_to is None) != (self.kind is MessageKind.MESSAGE):
            raise ConfigError(
                f"invalid in_reply_to {in_reply_to!r} of kind {self.kind.name.lower()}"
            )
        if in_reply_to is not None and len(in_reply_to) != ID_BYTES:
            raise ConfigError(_describe_id_fault(in_reply_to))
        if self.ttl_ms is not None and not 0 <= self.ttl_ms <= TTL_MS_MAX:
            raise ConfigError(f"ttl_ms={self.ttl_ms} must be 0 to {TTL_MS_MAX}")
        if self.session is not None:
            _check_text("session", self.session, SESSION_BYTES_MAX)
        if self.content_type:
            _check_text("content_type", self.content_type, CONTENT_TYPE_BYTES_MAX)
        if self.headers:
            _check_headers(self.headers)

    # Properties.

    @property
    def is_reply(self) -> bool:
        return self.kind is not MessageKind.MESSAGE

    @property
    def can_reply(self) -> bool:
        """Whether it can be replied to, with a result or an error.

        Replies cannot, or two domains could send each other errors for ever; messages that were
        sent by a domain, not by a cell, cannot either.
        """
        sender = self.source.first
        return self.kind is MessageKind.MESSAGE and sender is not None and not sender.is_domain

    @property
    def is_expired(self) -> bool:
        """Whether the TTL is over. Replies never expire."""
        return self.ttl_ms == 0 and not self.is_reply

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the message in a queue."""
        size = len(self.payload) + len(self.session or "") + _HEAD_BYTES
        size += _HOP_BYTES * (len(self.destination.hops) + len(self.source.hops))
        if self.headers:
            size += sum(len(name) + len(value) for name, value in self.headers.items())
        return size

    @property
    def handling_budget_ms(self) -> int | None:
        """Time left to start handling, so that the reply is in time; None if unlimited."""
        if self.ttl_ms is None:
            return None
        return self.ttl_ms - min(self.ttl_ms // _REPLY_SHARE, _REPLY_MS_MAX)

    # Derived envelopes.

    def with_source_hop(self, sender: CellAddress) -> Envelope:
        """Return the message as forwarded by a cell or domain, appended to its source path."""
        return copy_with(self, "source", self.source.appended(sender))

    def with_destination(self, destination: CellPath) -> Envelope:
        return copy_with(self, "destination", destination)

    def with_destination_and_hop(self, destination: CellPath, sender: CellAddress) -> Envelope:
        """Return the message with another destination path, as forwarded by a domain."""
        source = self.source.appended(sender)
        return copy_with_two(self, "destination", destination, "source", source)

    def with_elapsed(self, elapsed_ms: int) -> Envelope:
        """Return the message with a TTL reduced by the time it waited in this domain."""
        if self.ttl_ms is None or elapsed_ms <= 0:
            return self
        return copy_with(self, "ttl_ms", max(0, self.ttl_ms - elapsed_ms))


def make_reply(
    request: Envelope,
    *,
    id: bytes,
    payload: bytes = b"",
    content_type: str = "",
    headers: Mapping[str, str] | None = None,
    kind: MessageKind = MessageKind.REPLY,
    source: CellPath = _EMPTY_PATH,
) -> Envelope:
    """Build the reply to a message; its destination is the reversed source path.

    TTL, session and, by default, headers are those of the request. Raises LocalProtocolError if
    the message cannot be replied to.
    """
    if not request.can_reply:
        raise LocalProtocolError(
            f"cannot reply to this {request.kind.name.lower()} from {request.source.describe()}"
        )
    return Envelope(
        id=id,
        destination=request.source.reversed(),
        source=source,
        kind=kind,
        in_reply_to=request.id,
        session=request.session,
        ttl_ms=request.ttl_ms,
        headers=request.headers if headers is None else dict(headers),
        content_type=content_type,
        payload=payload,
    )


def _describe_id_fault(value: bytes) -> str:
    return f"message id of {len(value)} bytes must have {ID_BYTES}"


def _check_text(name: str, value: str, bytes_max: int) -> int:
    """Return the size of a text; raises ConfigError if it is too long or not encodable."""
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{name} {value!r} cannot be encoded as UTF-8") from None
    if size > bytes_max:
        raise ConfigError(f"{name} of {size} bytes is longer than {bytes_max}")
    return size


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > HEADERS_MAX:
        raise ConfigError(f"{len(headers)} headers are more than {HEADERS_MAX}")
    size = 0
    for name, value in headers.items():
        size += _check_text("header name", name, HEADER_NAME_BYTES_MAX)
        size += _check_text(f"header {name!r}", value, HEADER_VALUE_BYTES_MAX)
    if size > HEADERS_BYTES_MAX:
        raise ConfigError(f"headers of {size} bytes are longer than {HEADERS_BYTES_MAX}")
