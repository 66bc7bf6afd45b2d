"""A job's pass as a Spark sink: rows say what to read, and what comes of it goes to the desk."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from postroad.pipeline.fused.gathered import GatheredPart
from postroad.pipeline.fused.outcome import encode_part
from postroad.pipeline.fused.part import Part
from postroad.pipeline.fused.rows import from_batch
from postroad.pipeline.fused.working import PartWork

from .order import Order
from .questions import Parts
from .stages import read_deliveries

# What is larger goes to the desk itself, and not through a JVM and another process.
_INLINE_BYTES_MAX = 64 * 1024


@dataclass
class PartDone(WriterCommitMessage):
    """What a part came to, or the name under which it was left at the desk."""

    outcome: bytes | str


def work(order: Order, batches: Iterator[pa.RecordBatch]) -> PartDone:
    """Do a part of a batch."""
    program, name = order.begin(), secrets.token_hex(8)
    whole = Part(program, order.outputs, name)
    gathered = GatheredPart(program, order.outputs, name)
    is_whole = len(program.graph.stages) == 1
    part: PartWork = whole if is_whole else gathered
    try:
        program.lifecycles.before_batch()
        if is_whole:
            _work_whole(order, whole, batches)
        else:
            gathered.take_rows(row for batch in batches for row in from_batch(batch))
        outcome = encode_part(part.finish())
        done = PartDone(outcome)
        if len(outcome) > _INLINE_BYTES_MAX:
            order.desk.leave(name, outcome)
            done = PartDone(name)
        program.lifecycles.after_batch()
        return done
    except BaseException:
        part.abandon()
        raise


def _work_whole(order: Order, part: Part, batches: Iterator[pa.RecordBatch]) -> None:
    for it in read_deliveries(batches):
        if it.place is None:
            part.take_again(it.number, it.task, order.desk.read_again(it))
        else:
            medium = order.inputs[it.task]
            part.take_slice(it.number, it.task, it.generation, medium, order.read(it))


def _parts(messages: list[WriterCommitMessage | None]) -> Parts:
    outcomes = [it.outcome for it in messages if isinstance(it, PartDone)]
    return Parts(
        [it for it in outcomes if isinstance(it, bytes)],
        [it for it in outcomes if isinstance(it, str)],
    )


class JobStreamWriter(DataSourceStreamArrowWriter):
    """Settles each micro-batch."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartDone:
        return work(self._order, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._order.desk.settle(self._order.run, batchId, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._order.desk.discard(_parts(messages))


class JobWriter(DataSourceArrowWriter):
    """Settles a batch."""

    def __init__(self, order: Order, batch: int) -> None:
        self._order = order
        self._batch = batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartDone:
        return work(self._order, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._order.desk.settle(self._order.run, self._batch, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._order.desk.discard(_parts(messages))
