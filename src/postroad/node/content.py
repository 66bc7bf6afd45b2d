"""Messages to guaranteed queues, as they are written into letters and read again."""

from __future__ import annotations

import os
from hashlib import blake2b

import msgspec

from postroad.cells import CellAddress, CellPath
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope
from postroad.core.errors import MalformedPayloadError, Reject

KEY_HEADER = "postroad.key"
"""The header of the key that messages are kept in order by."""
ID_HEADER = "postroad.id"
"""The header of what tells a message from all others, the same at every attempt."""

CELL = "Guarantees"
"""The cell, in every domain, that tells who consumes a queue and passes messages on."""

_ID_BYTES = 16
_SOURCE_HOPS_MAX = 30
_NOUNS = {
    MessageKind.MESSAGE: "a message",
    MessageKind.REPLY: "a reply",
    MessageKind.ERROR: "an error",
}


def path_to(queue: str) -> CellPath:
    """The destination of messages to a queue."""
    return CellPath((CellAddress(queue),))


def new_id() -> bytes:
    """The id of a message that is sent once."""
    return os.urandom(_ID_BYTES)


def repeatable_id(domain: str, queue: str, idempotency_key: str) -> bytes:
    """The id of a message that may be sent several times, and is one."""
    text = "\0".join((domain, queue, idempotency_key))
    return blake2b(text.encode(), digest_size=_ID_BYTES).digest()


def write_message(envelope: Envelope) -> bytes:
    """The body of the letter for a message; its id is among its headers from now on."""
    headers = {**(envelope.headers or {}), ID_HEADER: envelope.id.hex()}
    return encode_envelope(msgspec.structs.replace(envelope, headers=headers))


def read_message(body: bytes, queue: str, node: str) -> tuple[Envelope, bytes]:
    """The message in a letter that a node sent to a queue, and its bytes; Reject if it is none.

    Its source ends with a cell of that node: who sent it before is only what the node wrote. If the
    letter says something else, the bytes are others.
    """
    try:
        envelope = decode_envelope(body)
    except MalformedPayloadError as error:
        raise Reject(str(error)) from None
    if envelope.kind is not MessageKind.MESSAGE or envelope.destination != path_to(queue):
        destination = envelope.destination.describe()
        raise Reject(f"{_NOUNS[envelope.kind]} to {destination} is no message to queue {queue!r}")
    source = _source_by(envelope.source, node)
    if source is envelope.source:
        return envelope, body
    envelope = msgspec.structs.replace(envelope, source=source)
    return envelope, encode_envelope(envelope)


def _source_by(source: CellPath, node: str) -> CellPath:
    """The source of a message as it came from a node."""
    sender = source.sender
    if sender is not None and sender.domain == node and not sender.is_domain:
        return source
    is_logical = sender is not None and sender.is_local
    last = CellAddress.of_domain(node) if is_logical else CellAddress(CELL, node)
    # It may have been passed on many times, while those who consume the queue came and went.
    return (source if len(source) < _SOURCE_HOPS_MAX else CellPath()).appended(last)


def aged(body: bytes, envelope: Envelope, lain_s: float) -> tuple[bytes, float | None]:
    """The body of a letter that lay here for a while, and how long it is worth anything."""
    if envelope.ttl_ms is None:
        return body, None
    envelope = envelope.with_elapsed(round(lain_s * 1000))
    assert envelope.ttl_ms is not None
    return encode_envelope(envelope), envelope.ttl_ms / 1000
