"""Failures of messages and the error replies that report them, small for any message."""

from __future__ import annotations

from typing import Annotated

import msgspec

from postroad.cells.addresses import CellAddress, CellPath, validate_domain_name
from postroad.cells.delivery.envelope import Envelope, MessageKind, make_reply
from postroad.cells.errors import (
    CellBusyError,
    HopLimitExceededError,
    MessageExpiredError,
    NoRouteError,
)
from postroad.core.errors import (
    MalformedPayloadError,
    MessageTooLargeError,
    MessagingError,
    PostroadError,
    RemoteDecodeError,
    RemoteHandlerError,
)

FAILURE_CONTENT_TYPE = "postroad.failure"
"""Content type of envelopes whose payload is a DeliveryFailure."""
TEXT_CHARACTERS_MAX = 1_024
FAILURE_BYTES_MAX = 8 * 1_024

_CLASSES: dict[int, type[MessagingError]] = {
    error_class.code: error_class
    for error_class in (
        CellBusyError,
        HopLimitExceededError,
        MessageExpiredError,
        MessageTooLargeError,
        NoRouteError,
    )
}


class DeliveryFailure(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Why a message was not delivered, or what its handler raised, and where."""

    code: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    """Error code of the routing error or of the handler's error; 0 for foreign exceptions."""
    text: Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
    hop: CellAddress | None
    """The destination; None if the path was complete."""
    domain: str
    """The domain that reports the failure."""
    is_retryable: bool = False
    is_handler_error: bool = False
    """Whether a handler raised it: the message was delivered, whatever the code."""

    def __post_init__(self) -> None:
        validate_domain_name(self.domain)

    @classmethod
    def of(
        cls, error: type[PostroadError], text: str, *, hop: CellAddress | None, at: str
    ) -> DeliveryFailure:
        """Return a failure that is raised as this error; a long text is truncated."""
        return cls(
            code=error.code, text=_fit(text), hop=hop, domain=at, is_retryable=error.retryable
        )

    @classmethod
    def raised(cls, error: BaseException, *, hop: CellAddress | None, at: str) -> DeliveryFailure:
        """Return the failure for an error of a handler; a long text is truncated."""
        code, is_retryable = 0, False
        if isinstance(error, PostroadError):
            code, is_retryable = error.code, error.retryable
        return cls(
            code=code,
            text=_fit(_text_of(error)),
            hop=hop,
            domain=at,
            is_retryable=is_retryable,
            is_handler_error=True,
        )

    def to_error(self) -> MessagingError:
        kind = None if self.is_handler_error else _CLASSES.get(self.code)
        if self.code == MalformedPayloadError.code:
            kind = RemoteDecodeError
        error = (kind or RemoteHandlerError)(
            self.text,
            peer=self.domain,
            subject=None if self.hop is None else str(self.hop),
            retryable=self.is_retryable,
        )
        if isinstance(error, RemoteHandlerError):
            error.remote_code = self.code
        return error


def _text_of(error: BaseException) -> str:
    """Return the text of an error, or its class name; its `__str__` may raise."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} (its __str__ raised)"


def _fit(text: str) -> str:
    return text.encode(errors="replace").decode()[:TEXT_CHARACTERS_MAX]


def make_error_reply(failed: Envelope, failure: DeliveryFailure, *, id: bytes) -> Envelope:
    """Build the error reply to a message; raises LocalProtocolError if it cannot be replied to.

    Its sender is the domain that reports the failure. Of the message it repeats only id, session
    and headers.
    """
    reply = make_reply(
        failed,
        id=id,
        payload=_encoder.encode(failure),
        content_type=FAILURE_CONTENT_TYPE,
        kind=MessageKind.ERROR,
    )
    return reply.with_source_hop(CellAddress.of_domain(failure.domain))


def reply_to_error(reply: Envelope, failure: DeliveryFailure, *, id: bytes) -> Envelope:
    """Build the error reply that replaces a reply that could not be delivered."""
    return msgspec.structs.replace(
        reply,
        id=id,
        source=CellPath((CellAddress.of_domain(failure.domain),)),
        kind=MessageKind.ERROR,
        content_type=FAILURE_CONTENT_TYPE,
        payload=_encoder.encode(failure),
    )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DeliveryFailure)


def decode_failure(payload: bytes) -> DeliveryFailure:
    """Decode the payload of an error reply; raises MalformedPayloadError if it is malformed."""
    if len(payload) > FAILURE_BYTES_MAX:
        raise MalformedPayloadError(
            f"failure of {len(payload)} bytes is larger than {FAILURE_BYTES_MAX}"
        )
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedPayloadError(f"malformed failure: {error}") from None
