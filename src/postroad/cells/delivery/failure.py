"""What an error reply says: small, whatever the size of the message that failed."""

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
"""The content of envelopes whose payload is a Failure."""
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
    """Why a message did not arrive, or what its receiver raised, and where."""

    code: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    """The code of the error: of routing, or what a handler raised; 0 for foreign exceptions."""
    text: Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
    hop: CellAddress | None
    """Where it should have gone, unless there was no hop left."""
    domain: str
    """The domain that gave up."""
    is_retryable: bool = False
    is_handler_error: bool = False
    """A handler raised it: the message arrived, even if the code is one of routing's."""

    def __post_init__(self) -> None:
        validate_domain_name(self.domain)

    @classmethod
    def of(
        cls, error: type[PostroadError], text: str, *, hop: CellAddress | None, at: str
    ) -> DeliveryFailure:
        """A failure that is raised as the given error; a long text is cut."""
        return cls(
            code=error.code, text=_fit(text), hop=hop, domain=at, is_retryable=error.retryable
        )

    @classmethod
    def raised(cls, error: BaseException, *, hop: CellAddress | None, at: str) -> DeliveryFailure:
        """What the handler of a cell raised; a long text is cut."""
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
        """The error for whoever waits for the reply."""
        error = self._class()(
            self.text,
            peer=self.domain,
            subject=None if self.hop is None else str(self.hop),
            retryable=self.is_retryable,
        )
        if isinstance(error, RemoteHandlerError):
            error.remote_code = self.code
        return error

    def _class(self) -> type[MessagingError]:
        if self.code == MalformedPayloadError.code:
            return RemoteDecodeError
        error_class = None if self.is_handler_error else _CLASSES.get(self.code)
        return error_class or RemoteHandlerError


def _text_of(error: BaseException) -> str:
    """What it says, or else what it is; somebody else wrote its `__str__`."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__}, whose text cannot be told"


def _fit(text: str) -> str:
    return text.encode(errors="replace").decode()[:TEXT_CHARACTERS_MAX]


def make_error_reply(failed: Envelope, failure: DeliveryFailure, *, id: bytes) -> Envelope:
    """Tell the sender of a message that it failed; raises LocalProtocolError if it cannot be told.

    The domain that gave up is the sender. Nothing of the message travels back but its id, its
    session and its headers.
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
    """Tell whoever waits for a reply that it failed on its way."""
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
    """Read the payload of an error reply; raises MalformedPayloadError for anything else."""
    if len(payload) > FAILURE_BYTES_MAX:
        raise MalformedPayloadError(f"a failure of {len(payload)} bytes")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedPayloadError(f"no failure: {error}") from None
