"""Messages to guaranteed queues, as they are written into letters and read again."""

from __future__ import annotations

import os
from hashlib import blake2b

import msgspec

from postroad.cells import CellAddress, CellPath, Envelope, Kind, decode_envelope, encode_envelope
from postroad.core.errors import MalformedPayload, Reject

KEY_HEADER = "postroad.key"
"""The header of the key that messages are kept in order by."""
ID_HEADER = "postroad.id"
"""The header of what tells a message from all others, the same at every attempt."""

_ID_BYTES = 16
_NOUNS = {Kind.MESSAGE: "a message", Kind.REPLY: "a reply", Kind.ERROR: "an error"}


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


def read_message(body: bytes, queue: str) -> Envelope:
    """The message in a letter of a queue; raises Reject if it is none."""
    try:
        envelope = decode_envelope(body)
    except MalformedPayload as error:
        raise Reject(str(error)) from None
    if envelope.kind is not Kind.MESSAGE or envelope.destination != path_to(queue):
        destination = envelope.destination.describe()
        raise Reject(f"{_NOUNS[envelope.kind]} to {destination} is no message to queue {queue!r}")
    return envelope


def aged(body: bytes, envelope: Envelope, lain_s: float) -> tuple[bytes, float | None]:
    """The body of a letter that lay here for a while, and how long it is worth anything."""
    if envelope.ttl_ms is None:
        return body, None
    envelope = envelope.aged(round(lain_s * 1000))
    assert envelope.ttl_ms is not None
    return encode_envelope(envelope), envelope.ttl_ms / 1000
