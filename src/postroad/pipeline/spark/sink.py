"""A job's pass as a Spark sink: rows say what to read, and what comes of it goes to the desk."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from postroad.pipeline.fused.outcome import encode_part
from postroad.pipeline.fused.part import Part
from postroad.pipeline.records import Delivery

from .order import Order

_decode = msgspec.msgpack.Decoder(list[Delivery]).decode


@dataclass
class PartDone(WriterCommitMessage):
    """What a part came to."""

    outcome: bytes


def work(order: Order, iterator: Iterator[pa.RecordBatch]) -> PartDone:
    """Do a part of a batch."""
    program = order.program
    part = Part(program, order.outputs, secrets.token_hex(8))
    try:
        program.lifecycles.before_batch()
        for rows in iterator:
            for row in rows.column(0):
                for delivery in _decode(row.as_py()):
                    take(order, part, delivery)
        done = PartDone(encode_part(part.finish()))
        program.lifecycles.after_batch()
        return done
    except BaseException:
        part.abandon()
        raise


def take(order: Order, part: Part, delivery: Delivery) -> None:
    """Work on a delivery, from wherever it can be read."""
    if delivery.place is None:
        part.take_again(delivery.number, order.desk.read_again(delivery))
        return
    medium = order.inputs[delivery.task]
    chunks = medium.read(delivery.place) if medium.is_portable else order.desk.read_slice(delivery)
    part.take_slice(delivery.number, delivery.task, delivery.generation, medium, chunks)


def _parts(messages: list[WriterCommitMessage | None]) -> list[bytes]:
    return [it.outcome for it in messages if isinstance(it, PartDone)]


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
