"""The same fused job without an account of its segments: what tracking is compared with."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from postroad.pipeline.fused.ledger import Edges, Residue
from postroad.pipeline.fused.making import Made
from postroad.pipeline.fused.outcome import encode_part
from postroad.pipeline.fused.part import Part
from postroad.pipeline.fused.passing import Pass, Piece
from postroad.pipeline.fused.sinks import StagingSink
from postroad.pipeline.media.medium import Chunk, InputMedium, OutputMedium
from postroad.pipeline.program import Program
from postroad.pipeline.spark.order import Order
from postroad.pipeline.spark.queries import Queries
from postroad.pipeline.spark.runner import SparkRunner
from postroad.pipeline.spark.sink import JobStreamWriter, JobWriter, PartDone
from postroad.pipeline.spark.source import JobSource
from postroad.pipeline.spark.stages import read_deliveries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_NOTHING = np.zeros(0, dtype=np.uint64)
_NO_EDGES = Edges(_NOTHING, np.zeros(0, dtype=np.intp), _NOTHING, 0)


class NoLedger:
    """Counts nothing."""

    def enter(self) -> Edges:
        return _NO_EDGES

    def give(self, *arguments: object) -> Edges:
        return _NO_EDGES

    def join(self, parts: object) -> Edges:
        return _NO_EDGES

    def take(self, edges: Edges, failed: Sequence[int] = ()) -> None:
        return

    def close(self) -> dict[int, Residue]:
        return {}


class UntrackedSink(StagingSink):
    """Writes without ids."""

    def put_out(self, piece: Piece, task: str, edges: Edges, made: Made) -> None:
        self.write(task, range(len(made.segments)), made.segments)  # type: ignore[arg-type]


class UntrackedPart(Part):
    """Runs the functions, and writes what they make."""

    def __init__(self, program: Program, outputs: Mapping[str, OutputMedium], name: str) -> None:
        super().__init__(program, outputs, name)
        self._sink = UntrackedSink(program.job.name, name, outputs)
        self._pass = Pass(program, 0, self._sink)

    def take_slice(
        self, number: int, task: str, generation: int, medium: InputMedium, chunks: Iterable[Chunk]
    ) -> None:
        from postroad.pipeline.fused.reading import PIECE_SEGMENTS

        self._outcome.deliveries.append(number)
        for chunk in chunks:
            for start in range(0, len(chunk.raws), PIECE_SEGMENTS):
                segments = list(map(medium.decode, chunk.raws[start : start + PIECE_SEGMENTS]))
                piece = Piece(self._program, _NOTHING, generation)
                piece.ledger = NoLedger()  # type: ignore[assignment]
                self._pass.enter(piece, task, segments)


def _work(order: Order, batches: Iterator[pa.RecordBatch]) -> PartDone:
    part = UntrackedPart(order.program, order.outputs, secrets.token_hex(8))
    for it in read_deliveries(batches):
        part.take_slice(it.number, it.task, 0, order.inputs[it.task], order.read(it))
    return PartDone(encode_part(part.finish()))


class _StreamWriter(JobStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartDone:
        return _work(self._order, iterator)


class _Writer(JobWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartDone:
        return _work(self._order, iterator)


class _Source(JobSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> JobStreamWriter:
        return _StreamWriter(self.order)

    def writer(self, schema: StructType, overwrite: bool) -> JobWriter:
        return _Writer(self.order, int(self.options["batch"]))


class UntrackedRunner(SparkRunner):
    """Runs jobs of one stage without tracking."""

    def _make_queries(self, session: SparkSession, order: Order) -> Queries:
        queries: Any = super()._make_queries(session, order)
        name: str = queries._name
        members = {"order": order, "name": classmethod(lambda cls: name)}
        session.dataSource.register(type("Untracked", (_Source,), members))
        return queries  # type: ignore[no-any-return]
