"""What inputs and outputs of a pipeline are made of.

An input is cut into slices. A slice is plain data that says where to read, and reading it gives the
same segments at every time and in every process, until it is settled. What was read is not
acknowledged one by one: a slice is settled as a whole, after those of its segments that failed have
been put into the pen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from postroad.durable.store.ledger import Ledger
from postroad.pipeline.job import Segment

Place: TypeAlias = dict[str, Any]
"""Where to read, as plain data that goes into JSON."""


class Slice(msgspec.Struct, frozen=True):
    """A stretch of an input."""

    place: Place
    count: int
    """About how many segments it has."""
    end: Place
    """Where the next slice begins."""


class Undecodable(NamedTuple):
    """Something in an input that is no segment."""

    raw: bytes
    reason: str


class Item(NamedTuple):
    """A segment of an input."""

    position: str
    """What tells it from all others of the input, at all times."""
    segment: Segment | Undecodable


class InputMedium(Protocol):
    """A place that segments come from. Subclasses need `cut` and `read`.

    Objects go to other processes, so they hold nothing open before `open` or `read`.
    """

    is_bounded: bool = True
    """Whether it has an end."""

    async def open(self) -> None:
        """Get ready to be cut into slices. Called in one process only."""
        return

    async def close(self) -> None:
        """Let go of what `open` took."""
        return

    async def cut(self, after: Place | None, segments: int) -> Sequence[Slice]:
        """The next slices, with about so many segments in all; none if there is nothing now.

        Args:
            after: the end of the last slice; None at the very beginning.
            segments: how many are wanted.
        """

    def read(self, place: Place) -> Iterator[Item]:
        """The segments of a slice. Called in any process, and again after failures."""

    def settle(self, ledger: Ledger, place: Place) -> None:
        """A slice is done with: say so in the transaction that does away with it."""
        return

    async def on_settled(self, places: Sequence[Place]) -> None:
        """Slices are durably done with; may be told twice."""
        return


class Written(NamedTuple):
    """A segment for an output."""

    id: int
    """The same however often it is written: 64 bits."""
    segment: Segment


class Unwritable(Exception):
    """Some of what was to be staged cannot be written, ever.

    Args:
        reasons: by the ids of those.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{len(reasons)} segments cannot be written")
        self.reasons = reasons


class OutputMedium(Protocol):
    """A place that segments go to. Subclasses need `stage`.

    What a batch writes is staged first, then the batch is settled, then it is published. What was
    settled is published for certain, perhaps twice; what was not, never.
    """

    async def open(self) -> None:
        """Get ready to publish."""
        return

    async def close(self) -> None:
        """Let go of what `open` took."""
        return

    def stage(self, stage: str, written: Sequence[Written]) -> Place | None:
        """Keep what a batch writes where it can be published from; None if there is no need.

        Args:
            stage: a name that no other staging has; staging again under it replaces it.
            written: in the order they were made.

        Raises:
            Unwritable: some of it is refused; nothing was staged.
            OSError: it is not possible now.
        """

    def settle(self, ledger: Ledger, written: Sequence[Written]) -> None:
        """Write within the transaction that settles the batch, where that is possible."""
        return

    async def publish(self, places: Sequence[Place]) -> None:
        """Make visible what was staged; doing it again changes nothing."""
        return

    async def discard(self, places: Sequence[Place]) -> None:
        """Throw away what was staged; it may be gone already."""
        return
