"""Interfaces of input and output connectors.

An input is read in splits. A split is plain data that says where to read, and gives the same
segments at every time and in every process, until it is committed. Segments are not acknowledged
one by one: a split is committed as a whole, after its failed segments are in the holding pen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from postroad.core.tracing import SpanContext
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.pipeline.job import Segment

Position: TypeAlias = dict[str, Any]
"""Where to read, as plain data that goes into JSON."""

Committable: TypeAlias = dict[str, Any]
"""What was staged and where, as plain data that goes into MsgPack."""

encode_segment: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
"""How segments are stored, and sent to other processes."""
decode_segment: Callable[[bytes], Segment] = msgspec.msgpack.Decoder(dict[str, Any]).decode

AnySegment: TypeAlias = dict[Any, Any]
"""A segment that a function made: its keys should be text, but may be anything."""
decode_any: Callable[[bytes], AnySegment] = msgspec.msgpack.Decoder(AnySegment).decode


# How often to look where nothing notifies of something new.
_WAIT_S = 0.05


class Split(msgspec.Struct, frozen=True):
    """A stretch of an input."""

    position: Position
    estimated_segments: int
    """About how many segments it has."""
    next_position: Position
    """Where the next split begins."""
    state: dict[str, Any] = {}
    """What the input remembers beside the position from now on, by keys: see `restore`."""


class UndecodableRecord(NamedTuple):
    """Something in an input that is no segment."""

    raw: bytes
    reason: str


class RawRecords(NamedTuple):
    """Segments that were read together, as the input has them."""

    source: str
    """What their positions are counted in."""
    positions: Sequence[int | str]
    """What tells each from all others of the source, at all times."""
    raws: Sequence[bytes]
    """What `decode` makes segments of."""


class InputConnector(Protocol):
    """A source of segments. Subclasses need `plan_splits` and `read`.

    Objects go to other processes, so they hold nothing open before `open` or `read`.
    """

    is_bounded: bool = True
    """Whether it has an end."""
    is_portable: bool = True
    """Whether splits can be read in any process; otherwise only in the one that called `open`."""
    split_segments_max: int = 1 << 62
    """How many segments one split may have at most, so that all cores get some: changes between two
    calls of `plan_splits`."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what was recorded with splits, by keys. Called before `open`."""
        return

    async def open(self, uncommitted: Sequence[Position]) -> None:
        """Get ready to plan splits, in one process only; `uncommitted` are of an older one."""
        return

    async def close(self) -> None:
        """Let go of what `open` took."""
        return

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        """The next splits after a position (None: the start), about so many segments in all."""

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be something new, or after some time."""
        await asyncio.sleep(min(timeout_s, _WAIT_S))

    def read(self, place: Position) -> Iterator[RawRecords]:
        """The records of a split; blocks. May be called again after failures."""

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        """Decodes a raw record; one for which it raises is no segment."""
        return decode_segment

    def span_contexts(self, place: Position) -> Sequence[SpanContext]:
        """Some of the spans that a split belongs to, where that is known without reading it."""
        return ()

    def commit(self, ledger: StoreTables, place: Position) -> None:
        """Commit a split within the transaction of its batch."""
        return

    async def on_committed(self, places: Sequence[Position]) -> None:
        """Splits are durably committed; may be called twice for one."""
        return


class UnwritableSegmentsError(Exception):
    """Some segments can never be written; `reasons` says why, by id."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} segments cannot be written")
        self.reasons = reasons


class RejectedSegment(NamedTuple):
    """A segment that an output refused when its batch was committed."""

    id: int
    reason: str
    segment: bytes
    """As MsgPack."""


class OutputWriter(Protocol):
    """Takes what a part of a batch writes to an output."""

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        """Take segments, in order; the id of one is the same however often it is written.

        Raises:
            UnwritableSegmentsError: some are refused, and none was taken.
            OSError: it is not possible now, and nothing that was taken counts.
        """

    def prepare_commit(self) -> Committable | None:
        """Make durable what was taken; None if there is nothing. Raises OSError likewise."""

    def abort(self) -> None:
        """Throw away what was taken."""
        return


class OutputConnector(Protocol):
    """A sink of segments. Subclasses need `create_writer`.

    What a batch writes is prepared first, in any process; then the batch is committed, and then its
    output. Output of a committed batch is committed for certain, perhaps twice; other output never.
    """

    is_external: bool = False
    """Whether whoever runs the batches publishes what was committed, and not the coordinator."""
    commits_together: bool = False
    """Whether what is to be published is given to `commit_together`, instead of one by one."""

    async def open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        """Get ready to commit what is pending; remove what else writers with a prefix left.

        Called in one process only, as all that follow but `create_writer`.
        """
        return

    async def close(self) -> None:
        """Let go of what `open` took."""
        return

    def check_capacity(self) -> None:
        """Raise OSError if no more can be written now; blocks. Nothing new is read until it can."""
        return

    def create_writer(self, stage: str) -> OutputWriter:
        """Begin to stage what a part of a batch writes; `stage` is a name that nothing else has."""

    def commit_in_transaction(self, ledger: StoreTables, staged: Committable) -> Committable | None:
        """Write within the transaction that commits the batch, where that is possible.

        Returns what is still to be committed, or None.
        """
        return staged

    async def commit(self, staged: Committable) -> Sequence[RejectedSegment] | None:
        """Make visible what was prepared; again changes nothing. Raises OSError if not now.

        Returns what was refused: it stays prepared until `abort`, and is refused again until
        recorded.
        """
        return None

    async def commit_together(
        self, application: str, pending: Sequence[tuple[int, Committable]]
    ) -> None:
        """Make visible all that is pending at once; to do it again changes nothing.

        Numbers grow and never come again. Raises OSError if it is not possible now.
        """
        return

    async def abort(self, staged: Committable) -> None:
        """Throw away what was staged; it may be gone already."""
        return

    async def remove_abandoned(
        self, prefix: str, kept: Sequence[Committable], before_s: float
    ) -> None:
        """Remove what writers with a prefix left before a time, and will not be committed."""
        return
