"""The envelope of a message: who sent it, where it shall go, and how long it is worth anything.

It differs from that of the system it follows in this: time is what is left, not a moment by
somebody's clock; a fresh message answers nothing, so that a request to oneself is not taken for
its own reply; an error is a reply, is small, and is never answered.
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
"""All headers together: error replies carry them, and shall be small."""
TTL_MS_MAX = 1 << 53
ENVELOPE_BYTES_MAX = 4 * MIB
"""As much as a frame carries by default."""

# What the way back may need of the time that is left: a tenth, and no more than ten seconds.
_REPLY_SHARE = 10
_REPLY_MS_MAX = 10_000

_EMPTY_PATH = CellPath()

# What an envelope and each of its hops are taken to weigh in memory.
_HEAD_BYTES = 500
_HOP_BYTES = 150

MessageId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
TtlMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=TTL_MS_MAX)]


class MessageKind(enum.IntEnum):
    """What a message is for."""

    MESSAGE = 0
    """Said by a cell of its own accord: a request, a command, a publication."""
    REPLY = 1
    """Answers another message."""
    ERROR = 2
    """Answers another message, which failed; its payload says how."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A message on its way. Whoever changes something makes another envelope."""

    id: MessageId
    """Chosen at random by the sender; copies for several subscribers share it."""
    destination: CellPath
    source: CellPath = CellPath()
    """Everybody who sent it on so far: cells, and domains by their domain addresses."""
    kind: MessageKind = MessageKind.MESSAGE
    in_reply_to: MessageId | None = None
    """The message this one is a reply to."""
    session: str | None = None
    """What the sender's log knows this conversation as; replies keep it."""
    ttl_ms: TtlMs | None = None
    """How long the sender goes on caring; None if for ever."""
    suppress_errors: bool = False
    """The sender does not want to hear that nobody takes it: a publication."""
    wants_reply: bool = False
    """The sender waits for an answer: a call, not a send. It is told of failures either way."""
    headers: dict[str, str] | None = None
    """The trace it belongs to, and the like."""
    content_type: str = ""
    """Says how to read the payload."""
    payload: bytes = b""

    def __post_init__(self) -> None:
        # It is called for every message that comes in: what is nearly always so goes first.
        if len(self.id) != ID_BYTES:
            raise ConfigError(_describe_id_fault(self.id))
        in_reply_to = self.in_reply_to
        if (in_reply_to is None) != (self.kind is MessageKind.MESSAGE):
            raise ConfigError(f"this {self.kind.name.lower()} answers {in_reply_to!r}")
        if in_reply_to is not None and len(in_reply_to) != ID_BYTES:
            raise ConfigError(_describe_id_fault(in_reply_to))
        if self.ttl_ms is not None and not 0 <= self.ttl_ms <= TTL_MS_MAX:
            raise ConfigError(f"ttl_ms={self.ttl_ms} must be 0 to {TTL_MS_MAX}")
        if self.session is not None:
            _check_text("session", self.session, SESSION_BYTES_MAX)
        if self.content_type:
            _check_text("content", self.content_type, CONTENT_TYPE_BYTES_MAX)
        if self.headers:
            _check_headers(self.headers)

    # What may be done with it.

    @property
    def is_reply(self) -> bool:
        """Whether somebody waits for it: a reply or an error."""
        return self.kind is not MessageKind.MESSAGE

    @property
    def can_reply(self) -> bool:
        """Whether it can be replied to, be it with an error.

        Replies and errors cannot, or two of them would call each other for ever; neither can
        what a domain itself sent.
        """
        sender = self.source.first
        return self.kind is MessageKind.MESSAGE and sender is not None and not sender.is_domain

    @property
    def is_expired(self) -> bool:
        """Whether the sender has stopped caring. A reply never expires: it may still inform."""
        return self.ttl_ms == 0 and not self.is_reply

    @property
    def memory_bytes(self) -> int:
        """About how many bytes it takes while it waits somewhere."""
        size = len(self.payload) + len(self.session or "") + _HEAD_BYTES
        size += _HOP_BYTES * (len(self.destination.hops) + len(self.source.hops))
        if self.headers:
            size += sum(len(name) + len(value) for name, value in self.headers.items())
        return size

    @property
    def handling_budget_ms(self) -> int | None:
        """The time left to begin with it, if the answer is to be back in time."""
        if self.ttl_ms is None:
            return None
        return self.ttl_ms - min(self.ttl_ms // _REPLY_SHARE, _REPLY_MS_MAX)

    # Other envelopes made of it.

    def with_source_hop(self, sender: CellAddress) -> Envelope:
        """The message as a cell or a domain sends it on: with itself at the end of its source."""
        return copy_with(self, "source", self.source.appended(sender))

    def with_destination(self, destination: CellPath) -> Envelope:
        """The message on another way."""
        return copy_with(self, "destination", destination)

    def with_destination_and_hop(self, destination: CellPath, sender: CellAddress) -> Envelope:
        """The message on another way, as a domain sends it on."""
        source = self.source.appended(sender)
        return copy_with_two(self, "destination", destination, "source", source)

    def with_elapsed(self, elapsed_ms: int) -> Envelope:
        """The message after it has lain here for so long, a part of a millisecond not counted."""
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
    """Make the answer to a message; it goes back by its source path.

    The time left, the session and (unless others are given) the headers are those of the request.
    Raises LocalProtocolError if the message cannot be answered.
    """
    if not request.can_reply:
        raise LocalProtocolError(
            f"this {request.kind.name.lower()} of {request.source.describe()} cannot be answered"
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
    return f"a message id of {len(value)} bytes; it must have {ID_BYTES}"


def _check_text(name: str, value: str, bytes_max: int) -> int:
    """Refuse a text that is too long or no text at all; gives its size."""
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
