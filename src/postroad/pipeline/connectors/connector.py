"""What inputs and outputs of a pipeline are made of.

An input is cut into slices. A slice is plain data that says where to read, and reading it gives the
same segments at every time and in every process, until it is settled. What was read is not
acknowledged one by one: a slice is settled as a whole, after those of its segments that failed have
been put into the pen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from postroad.core.tracing import SpanContext
from postroad.durable.store.ledger import Ledger
from postroad.pipeline.job import Segment

Position: TypeAlias = dict[str, Any]
"""Where to read, as plain data that goes into JSON."""

Committable: TypeAlias = dict[str, Any]
"""What was staged and where, as plain data that goes into MsgPack."""

encode_segment: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
"""How segments are kept, and how they go from one process to another."""
decode_segment: Callable[[bytes], Segment] = msgspec.msgpack.Decoder(dict[str, Any]).decode

AnySegment: TypeAlias = dict[Any, Any]
"""A segment that a function made: its names should be texts, but who knows."""
decode_any: Callable[[bytes], AnySegment] = msgspec.msgpack.Decoder(AnySegment).decode


# How often to look where nothing tells that there is something new.
_WAIT_S = 0.05


class Split(msgspec.Struct, frozen=True):
    """A stretch of an input."""

    position: Position
    estimated_segments: int
    """About how many segments it has."""
    next_position: Position
    """Where the next slice begins."""
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
    """A place that segments come from. Subclasses need `cut` and `read`.

    Objects go to other processes, so they hold nothing open before `open` or `read`.
    """

    is_bounded: bool = True
    """Whether it has an end."""
    is_portable: bool = True
    """Whether slices can be read in any process; otherwise only in the one that called `open`."""
    split_segments_max: int = 1 << 62
    """How many segments one split may have at most, so that all cores get some: changes between two
    calls of `plan_splits`."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what was recorded with splits, by keys. Called before `open`."""
        return

    async def open(self, unsettled: Sequence[Position]) -> None:
        """Get ready to be cut into slices. Called in one process only.

        Args:
            unsettled: slices of an earlier process that will be read again.
        """
        return

    async def close(self) -> None:
        """Let go of what `open` took."""
        return

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        """The next slices, with about so many segments in all; none if there is nothing now.

        Args:
            after: the end of the last slice; None at the very beginning.
            segments: how many are wanted.
        """

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be something new to cut, or after some time."""
        await asyncio.sleep(min(timeout_s, _WAIT_S))

    def read(self, place: Position) -> Iterator[RawRecords]:
        """What a slice has. May be called again after failures, and blocks."""

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        """What makes a segment of something raw; whatever it raises says that there is none."""
        return decode_segment

    def span_contexts(self, place: Position) -> Sequence[SpanContext]:
        """Some of the spans that a slice belongs to, where that is known without looking for it."""
        return ()

    def commit(self, ledger: Ledger, place: Position) -> None:
        """A slice is done with: say so in the transaction that does away with it."""
        return

    async def on_committed(self, places: Sequence[Position]) -> None:
        """Slices are durably done with; may be told twice."""
        return


class UnwritableSegmentsError(Exception):
    """Some of what was to be staged cannot be written, ever.

    Args:
        reasons: by the ids of those.
    """

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
        """Take some segments.

        Args:
            ids: 64 bits for each segment, the same however often it is written.
            segments: in the order they were made.

        Raises:
            Unwritable: some of them are refused; none of them was taken.
            OSError: it is not possible now; nothing that was taken counts.
        """

    def prepare_commit(self) -> Committable | None:
        """Have all that was taken where a crash does not lose it; None if there is nothing.

        Raises:
            OSError: as above.
        """

    def abort(self) -> None:
        """Throw away what was taken."""
        return


class OutputConnector(Protocol):
    """A place that segments go to. Subclasses need `begin`.

    What a batch writes is staged first, in any process; then the batch is settled, then it is
    published. What was settled is published for certain, perhaps twice; what was not, never.
    """

    is_external: bool = False
    """Whether whoever runs the batches publishes what was settled, and not the coordinator."""
    commits_together: bool = False
    """Whether what is to be published is given to `commit_together`, instead of one by one."""

    async def open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        """Get ready to publish. Called in one process only, as all that follow but `begin`.

        Args:
            prefix: what the names of the job's stagings begin with.
            unpublished: what will still be published; of its other stagings nobody will ask.
        """
        return

    async def close(self) -> None:
        """Let go of what `open` took."""
        return

    def check_capacity(self) -> None:
        """Say whether more can be written soon; blocks. Nothing new is read until it can.

        Raises:
            OSError: there is no room now.
        """
        return

    def create_writer(self, stage: str) -> OutputWriter:
        """Begin to stage what a part of a batch writes; `stage` is a name that nothing else has."""

    def commit_in_transaction(self, ledger: Ledger, staged: Committable) -> Committable | None:
        """Write within the transaction that settles the batch, where that is possible.

        Returns:
            What is still to be published; None if that is nothing.
        """
        return staged

    async def commit(self, staged: Committable) -> Sequence[RejectedSegment] | None:
        """Make visible what was staged; doing it again changes nothing.

        Returns:
            What was refused, if anything was. It stays staged until `abort` is called: what was
            not recorded is refused again.

        Raises:
            OSError: it is not possible now.
        """
        return None

    async def commit_together(
        self, application: str, pending: Sequence[tuple[int, Committable]]
    ) -> None:
        """Make visible what was staged, all at once; doing it again changes nothing.

        Args:
            application: tells the output of this job and store from all others.
            pending: with numbers that grow, and never come again.

        Raises:
            OSError: it is not possible now.
        """
        return

    async def abort(self, staged: Committable) -> None:
        """Throw away what was staged; it may be gone already."""
        return

    async def remove_abandoned(
        self, prefix: str, kept: Sequence[Committable], before_s: float
    ) -> None:
        """Remove what attempts have left that were killed or not needed.

        Args:
            prefix: what the names of the job's stagings begin with.
            kept: what will still be published.
            before_s: what was staged later, in seconds since 1970, may still be needed.
        """
        return
