"""Which pages of a window are new, and whether they continue what was accepted before. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from postroad.core.errors import StreamDivergedError
from postroad.durable.bridges.hash_chain import extend_chain
from postroad.durable.bridges.protocol import StreamWindow, WireBatch


class SequenceGap(Exception):
    """The window begins after the number that is expected next."""


class NewBatch(msgspec.Struct, frozen=True):
    """A page that was not accepted before."""

    first: int
    batch: WireBatch
    is_intact: bool
    """Whether its letters are those the sender meant."""

    @property
    def last(self) -> int:
        return self.first + self.batch.count - 1


def new_batches(watermark: int, chain: bytes, window: StreamWindow) -> Iterator[NewBatch]:
    """The pages of a window that come after the watermark, in order.

    Raises:
        GapBefore: something is missing between the watermark and the window.
        StreamDivergedError: the window does not continue what the watermark stands for.
    """
    first, previous = window.first, window.previous
    for batch in window.batches:
        last = first + batch.count - 1
        if last == watermark and batch.chain != chain:
            raise StreamDivergedError(f"message {last} was another one when it was accepted")
        if last > watermark:
            if first > watermark + 1:
                raise SequenceGap
            if first != watermark + 1 or previous != chain:
                raise StreamDivergedError(
                    f"message {first} does not follow what was accepted before"
                )
            is_intact = batch.data is None or extend_chain(previous, batch.data) == batch.chain
            yield NewBatch(first, batch, is_intact)
            watermark, chain = last, batch.chain
        first, previous = last + 1, batch.chain
