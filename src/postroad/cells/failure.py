"""What an error reply says: small, whatever the size of the message that failed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from postroad.core.errors import MalformedPayload, MessagingError, RemoteHandlerFailure

from .address import CellAddress, validate_domain_name
from .envelope import Envelope, Kind, make_reply
from .errors import HopLimit, MessageExpired, NoRoute, RoutingError

FAILURE_CONTENT = "postroad.failure"
"""The content of envelopes whose payload is a Failure."""
TEXT_CHARACTERS_MAX = 1_024
FAILURE_BYTES_MAX = 8 * 1_024

_CLASSES: dict[int, type[RoutingError]] = {
    it.code: it for it in (HopLimit, MessageExpired, NoRoute)
}


class Failure(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Why a message did not arrive, and where it got stuck."""

    code: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    """The code of the error it is raised as."""
    text: Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
    hop: CellAddress | None
    """Where it should have gone, unless there was no hop left."""
    at: str
    """The domain that gave up."""
    is_retryable: bool = False

    def __post_init__(self) -> None:
        validate_domain_name(self.at)

    @classmethod
    def of(
        cls, error: type[MessagingError], text: str, *, hop: CellAddress | None, at: str
    ) -> Failure:
        """A failure that is raised as the given error; a long text is cut."""
        text = text.encode(errors="replace").decode()
        return cls(
            code=error.code,
            text=text[:TEXT_CHARACTERS_MAX],
            hop=hop,
            at=at,
            is_retryable=error.retryable,
        )

    def to_error(self) -> MessagingError:
        """The error for whoever waits for the reply."""
        known = _CLASSES.get(self.code)
        hop = None if self.hop is None else str(self.hop)
        if known is not None:
            return known(self.text, peer=self.at, subject=hop, retryable=self.is_retryable)
        error = RemoteHandlerFailure(
            self.text, peer=self.at, subject=hop, retryable=self.is_retryable
        )
        error.remote_code = self.code
        return error


def make_error_reply(failed: Envelope, failure: Failure, *, id: bytes) -> Envelope:
    """Tell the sender of a message that it failed; raises LocalProtocolError if it cannot be told.

    The domain that gave up is the sender. Nothing of the message travels back but its id, its
    session and its headers.
    """
    reply = make_reply(
        failed, id=id, payload=_encoder.encode(failure), content=FAILURE_CONTENT, kind=Kind.ERROR
    )
    return reply.sent_by(CellAddress.of_domain(failure.at))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Failure)


def decode_failure(payload: bytes) -> Failure:
    """Read the payload of an error reply; raises MalformedPayload for anything else."""
    if len(payload) > FAILURE_BYTES_MAX:
        raise MalformedPayload(f"a failure of {len(payload)} bytes")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise MalformedPayload(f"no failure: {error}") from None
