"""What the simulated applications post, and what their handlers shall do with it."""

from __future__ import annotations

import enum

import msgspec

from postroad.durable import OutgoingMessage

ORDERS = "orders"
"""Handlers write a row, and post a copy to a third node with it."""
COPIES = "copies"
"""Where those copies go; handlers write a row."""
RELAY = "relay"
"""Handlers only post a copy on."""
NOTES = "notes"
"""Handlers do nothing that a store knows of."""
WARD = "ward"
"""Handlers may fail for good: after a few attempts messages are dead letters."""
DESK = "desk"
"""Messages are pulled, and acknowledged with a row."""
CLOSED = "closed"
"""A queue nobody has, and nobody may open."""

OPEN_QUEUES = (ORDERS, COPIES, RELAY, NOTES, WARD, DESK)


class Temper(enum.StrEnum):
    FINE = "fine"
    REJECTED = "rejected"
    HOPELESS = "hopeless"
    """The handler always fails."""


class Slip(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    token: str
    """Tells what was meant, however often it is posted."""
    copy_to: str | None = None
    """A node that gets a copy, posted by the handler."""
    temper: Temper = Temper.FINE
    filler: str = ""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    slip: Slip
    peer: str
    queue: str
    key: str | None = None
    delay: float | None = None
    ttl: float | None = None
    priority: int = 0

    @property
    def token(self) -> str:
        return self.slip.token

    def to_draft(self, *, is_idempotent: bool) -> OutgoingMessage:
        return OutgoingMessage(
            to=self.peer,
            queue=self.queue,
            body=encode_slip(self.slip),
            key=self.key,
            idempotency_key=self.token if is_idempotent else None,
            delay=self.delay,
            ttl=self.ttl,
            priority=self.priority,
        )


class Way(enum.StrEnum):
    POST = "post"
    BATCH = "batch"
    TRANSACTION = "transaction"
    """With a row in the sender's own table."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Parcels that an application posts together, all of them or none."""

    name: str
    time: float
    way: Way
    parcels: tuple[Parcel, ...]
    is_idempotent: bool
    """Whether it is posted again, under the same idempotency keys, until that is confirmed."""
    is_doubted: bool = False
    """Whether it is posted once more after that."""


def copy_of(slip: Slip) -> Slip:
    return Slip(token=f"{slip.token}/copy")


encode_slip = msgspec.json.encode
_decoder = msgspec.json.Decoder(Slip)


def decode_slip(body: bytes) -> Slip:
    return _decoder.decode(body)
