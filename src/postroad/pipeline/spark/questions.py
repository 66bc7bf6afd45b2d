"""What Spark's processes ask the desk of a job, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from postroad.core.errors import MalformedPayload
from postroad.core.limits import MIB, Limits

CLUSTER = "postroad-pipeline"
SUBJECT = "desk"
DESK = "desk"
WORKER = "worker"
"""What the desk and Spark's processes call themselves; a certificate names both."""
LIMITS = Limits(
    # What a part of a batch comes to is one message; how much that is, `batch_size` decides. Who
    # has not proven the token cannot send more than a hello.
    frame_bytes_max=256 * MIB,
    # Several such messages may come at once, and all from one machine.
    unfinished_bytes_max=512 * MIB,
    # A connection for each of Spark's Python processes.
    accepted_max=4_096,
)

REPLY_S = 30.0
"""Time for an answer; more than any transaction takes, less than anybody would wait for."""


class CoordinatorEndpoint(msgspec.Struct, frozen=True):
    """Where the desk of a job is."""

    address: str
    """Host and port."""
    token: str
    """Who does not know it gets no answer; it is proven on each connection, and never sent."""
    certificate: bytes = b""
    """The certificate of the desk and of whoever may ask it, and its key; empty without TLS."""

    def __repr__(self) -> str:
        return f"DeskAddress({self.address!r})"


class PollDeliveries(msgspec.Struct, frozen=True, tag=True):
    """Deliver what there is; answered by the number of the last delivery when it is above `after`,
    or when the time is over."""

    after: int
    wait_s: float


class GetInitialOffset(msgspec.Struct, frozen=True, tag=True):
    """Where to begin: answered by the number before the first delivery that is not settled."""


class ListDeliveries(msgspec.Struct, frozen=True, tag=True):
    """Answered by the deliveries of a range of numbers that are not settled."""

    after: int
    upto: int


class ReadSplit(msgspec.Struct, frozen=True, tag=True):
    """Answered by the chunks of a delivery."""

    number: int


class ReadRetries(msgspec.Struct, frozen=True, tag=True):
    """Answered by some of the roots that come again with a delivery, after the last one before."""

    number: int
    after: int | None


class StorePartitionResult(msgspec.Struct, frozen=True, tag=True):
    """Keep what a part of a batch came to until the batch is settled."""

    name: str
    part: bytes


class PartitionResults(msgspec.Struct, frozen=True):
    """What the parts of a batch came to."""

    inline: list[bytes]
    left: list[str]
    """Names of those that were left at the desk."""


class CommitBatch(msgspec.Struct, frozen=True, tag=True):
    """Account for a batch."""

    run: str
    batch: int
    parts: PartitionResults


class AbortBatch(msgspec.Struct, frozen=True, tag=True):
    """Throw away what parts of a batch have staged."""

    parts: PartitionResults


class GetIsolationMode(msgspec.Struct, frozen=True, tag=True):
    """Whether functions are to be tried in a process of their own: answered by yes or no."""


class ReportFatalError(msgspec.Struct, frozen=True, tag=True):
    """A worker cannot run the job, and no other could: it is told why."""

    reason: str


Question: TypeAlias = (
    PollDeliveries | GetInitialOffset | ListDeliveries | ReadSplit | ReadRetries | GetIsolationMode | StorePartitionResult | CommitBatch | AbortBatch | ReportFatalError
)


class EncodedRecords(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a slice."""

    source: str
    positions: list[int | str]
    raws: list[bytes]


encode = msgspec.msgpack.Encoder().encode
_decode_question: Callable[[bytes], Question] = msgspec.msgpack.Decoder(Question).decode


def read_question(payload: bytes) -> Question:
    """Read a question; raises MalformedPayload if it is none."""
    try:
        return _decode_question(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedPayload(f"no question for a desk: {error}") from None
