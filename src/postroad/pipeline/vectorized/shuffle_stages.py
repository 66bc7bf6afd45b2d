"""Jobs of several stages: what each pass takes from rows and leaves in rows."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    InputConnector,
    RawRecords,
    decode_any,
    encode_segment,
)
from postroad.pipeline.coordinator.progress import TaskCounts
from postroad.pipeline.coordinator.records import RetryRoot, describe_exception, encode_for_retry
from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.acks import EdgeBatch
from postroad.pipeline.vectorized.decoding import (
    PIECE_SEGMENTS,
    DecodedRoots,
    decode_retries,
    decode_split,
)
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind, take_computed
from postroad.pipeline.vectorized.stage_executor import (
    RootBatch,
    SegmentFailure,
    StageExecutor,
    group_key,
)
from postroad.pipeline.vectorized.task_calls import TaskOutput, drop_tracebacks, map_function
from postroad.pipeline.windows import InvalidSegmentError, encode_group

if TYPE_CHECKING:
    import pyarrow as pa

_encode_in_order = msgspec.msgpack.Encoder(order="deterministic").encode


class ShuffleSink:
    """Keeps what leaves a pass, as rows."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self.rows: list[ShuffleRow] = []

    def send_downstream(
        self, piece: RootBatch, task: str, edges: EdgeBatch, segments: list[Segment]
    ) -> None:
        for place, segment in enumerate(segments):
            origin = int(edges.origins[place])
            root, edge = int(piece.roots[origin]), int(edges.ids[place])
            try:
                shard = self._shard(task, root, segment)
                payload = encode_segment(segment)
            except Exception as error:
                piece.failures.append(SegmentFailure(origin, task, error.with_traceback(None)))
                continue
            row = ShuffleRow(
                shard, ShuffleRowKind.SEGMENT, task, root, piece.generation, edge, payload=payload
            )
            self.rows.append(row)

    def _shard(self, task: str, root: int, segment: Segment) -> int:
        """Where a segment meets others of its group; anywhere, if it needs not."""
        keys = self._program.graph.tasks[task].group_by
        if keys is None:
            return root
        group = group_key(keys, segment)
        try:
            encoded = encode_group(group)
        except InvalidSegmentError:
            # Functions of groups keep what they group by. So do windows, which need no shuffle.
            if task in self._program.group_tasks:
                raise
            encoded = _encode_in_order(group)
        return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")

    def write_output(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> None:
        ids = piece.output_ids(edges, task, made).tolist()
        parents = range(len(ids)) if made.parents is None else made.parents.tolist()
        outputs: dict[int, list[tuple[int, Segment]]] = {}
        for parent, id, segment in zip(parents, ids, made.segments, strict=True):
            outputs.setdefault(parent, []).append((id, segment))
        for parent, those in outputs.items():
            self._put(piece, task, int(edges.origins[parent]), int(edges.ids[parent]), those)
        # What was made is taken when it is written; where nothing was made, now.
        piece.ledger.mark_processed(edges, sorted({*outputs, *made.failed}))

    def _put(
        self, piece: RootBatch, task: str, origin: int, edge: int, those: list[tuple[int, Segment]]
    ) -> None:
        root = int(piece.roots[origin])
        try:
            payload, lacking = msgspec.msgpack.encode(those), 0
        except Exception:
            kept = [member for member in those if _is_writable(piece, task, origin, member)]
            payload, lacking = msgspec.msgpack.encode(kept), len(those) - len(kept)
        row = ShuffleRow(
            root, ShuffleRowKind.OUTPUT, task, root, piece.generation, edge, 0, lacking, payload
        )
        self.rows.append(row)

    def close(self, piece: RootBatch) -> dict[int, tuple[int, int]]:
        """Write the remaining rows of a batch of roots; returns what is unacknowledged, by root."""
        left = {
            origin: (left.bits, left.missing) for origin, left in piece.ledger.unacked().items()
        }
        for origin, addition in piece.additions:
            try:
                payload = msgspec.msgpack.encode(addition[1:])
            except Exception as error:
                piece.failures.append(SegmentFailure(origin, addition.task, error))
                continue
            self._tell(piece, origin, ShuffleRowKind.ADDITION, addition.task, payload, -1)
            _miss(left, origin)
        for failure in piece.failures:
            self._tell(
                piece,
                failure.origin,
                ShuffleRowKind.FAILURE,
                failure.task,
                describe_exception(failure.error).encode(),
            )
            _miss(left, failure.origin)
        return left

    def _tell(
        self,
        piece: RootBatch,
        origin: int,
        kind: ShuffleRowKind,
        task: str,
        payload: bytes,
        missing: int = 0,
    ) -> None:
        root = int(piece.roots[origin])
        self.rows.append(
            ShuffleRow(root, kind, task, root, piece.generation, 0, 0, missing, payload)
        )

    def take(self) -> list[ShuffleRow]:
        """The rows, which are then somebody else's."""
        rows, self.rows = self.rows, []
        return rows


def _is_writable(piece: RootBatch, task: str, origin: int, output: tuple[int, Segment]) -> bool:
    """Whether an output can get a segment; if not, that is noted."""
    try:
        # As deep as it will be among others.
        msgspec.msgpack.encode([output])
    except Exception as error:
        failure = TypeError(f"it cannot be written: {error}")
        piece.failures.append(SegmentFailure(origin, task, failure))
        return False
    return True


def _miss(left: dict[int, tuple[int, int]], origin: int) -> None:
    """A root is not done with before a row of it makes up for this, if there is such a row."""
    bits, missing = left.get(origin, (0, 0))
    left[origin] = (bits, missing + 1)


def _to_rows(counts: Mapping[str, TaskCounts]) -> list[ShuffleRow]:
    """What tasks did, as a row that no other part has."""
    if not counts:
        return []
    nonce, payload = secrets.randbits(64), msgspec.msgpack.encode(counts)
    return [ShuffleRow(0, ShuffleRowKind.COUNTS, "", 0, bits=nonce, payload=payload)]


class SourceStage:
    """The first stage: takes splits of inputs."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self._sink = ShuffleSink(program)
        self._pass = StageExecutor(program, 0, self._sink)

    def process_split(
        self,
        number: int,
        task: str,
        generation: int,
        connector: InputConnector,
        chunks: Iterable[RawRecords],
    ) -> Iterator[list[ShuffleRow]]:
        """Work on a split; gives rows, piece by piece."""
        return self._take(
            number, task, decode_split(self._program, task, generation, connector, chunks)
        )

    def process_retries(
        self, number: int, task: str, roots: Iterable[RetryRoot]
    ) -> Iterator[list[ShuffleRow]]:
        """Work on roots that come again; gives rows, piece by piece."""
        return self._take(number, task, decode_retries(task, roots))

    def _take(
        self, number: int, task: str, pieces: Iterable[DecodedRoots]
    ) -> Iterator[list[ShuffleRow]]:
        count = 0
        for read in pieces:
            count += read.total
            yield self.process(task, read)
        yield [self.complete(task, number, count)]

    def complete(self, task: str, number: int, count: int) -> ShuffleRow:
        """The row that says that all of a delivery was here; 0 is what Spark's readers gave."""
        # Others may have read as many of these: rows that are the same count once.
        nonce = 0 if number else secrets.randbits(64)
        return ShuffleRow(
            0, ShuffleRowKind.DELIVERY, task, 0, edge=number, bits=nonce, missing=count
        )

    def finish(self) -> list[ShuffleRow]:
        """What is to be told at the end."""
        return _to_rows(self._pass.counts)

    def process(self, task: str, read: DecodedRoots) -> list[ShuffleRow]:
        """Work on roots; gives rows."""
        self._take_piece(task, read)
        return self._sink.take()

    def _take_piece(self, task: str, read: DecodedRoots) -> None:
        for failed in read.rejected:
            payload = msgspec.msgpack.encode(failed)
            self._sink.rows.append(
                ShuffleRow(failed.root, ShuffleRowKind.REFUSED, task, failed.root, payload=payload)
            )
        # Now, because functions may change what they are given.
        payloads = list(map(encode_for_retry, read.segments, read.raws))
        piece = RootBatch(self._program, read.roots, read.generation)
        self._pass.run_roots(piece, task, read.segments)
        left = self._sink.close(piece)
        for place, (root, payload) in enumerate(zip(piece.roots.tolist(), payloads, strict=True)):
            bits, missing = left.get(place, (0, 0))
            kind, published = ShuffleRowKind.ROOT, read.published.get(place)
            if published:
                kind, payload = ShuffleRowKind.AGAIN, msgspec.msgpack.encode((payload, published))
            row = ShuffleRow(root, kind, task, root, read.generation, 0, bits, missing, payload)
            self._sink.rows.append(row)


class ShuffleStage:
    """A later stage: takes the segments that were sent to it, and passes other rows on.

    `columns` has the types that expressions of its tasks see, by task.
    """

    def __init__(
        self, program: CompiledJob, stage: int, columns: Mapping[str, pa.DataType] | None = None
    ) -> None:
        self._columns = columns or {}
        self._program = program
        self._stage = stage
        self._sink = ShuffleSink(program)
        self._pass = StageExecutor(program, stage, self._sink)

    def take(self, rows: Iterable[ShuffleRow]) -> Iterator[list[ShuffleRow]]:
        """Work on rows; gives others."""
        mine: dict[tuple[str, int], list[ShuffleRow]] = {}
        others: list[ShuffleRow] = []
        for row in rows:
            if (
                row.kind == ShuffleRowKind.SEGMENT
                and self._program.graph.stage_of[row.task] == self._stage
            ):
                mine.setdefault((row.task, row.generation), []).append(row)
            elif row.kind == ShuffleRowKind.SEGMENT:
                others.append(row)
            else:
                others.append(row._replace(shard=row.root))
        if others:
            yield others
        for (task, generation), those in mine.items():
            for start in range(0, len(those), PIECE_SEGMENTS):
                self._take_piece(task, generation, those[start : start + PIECE_SEGMENTS])
                yield self._sink.take()

    def finish(self) -> list[ShuffleRow]:
        """What is to be told at the end."""
        return _to_rows(self._pass.counts)

    def _take_piece(self, task: str, generation: int, rows: Sequence[ShuffleRow]) -> None:
        ids = np.array([row.root for row in rows], dtype=np.uint64)
        roots, origins = np.unique(ids, return_inverse=True)
        piece = RootBatch(self._program, roots, generation)
        segments, raised = map_function(decode_any, [row.payload for row in rows])
        for place, error in raised.items():
            piece.failures.append(SegmentFailure(int(origins[place]), task, error))
        drop_tracebacks(*raised.values())
        if raised:
            kept = [place for place in range(len(rows)) if place not in raised]
            rows, origins = [rows[place] for place in kept], origins[kept]
            segments = [segments[place] for place in kept]
        edges = np.array([row.edge for row in rows], dtype=np.uint64)
        arrived = piece.ledger.add_received(edges, origins)
        results = None
        if task in self._program.sql_tasks:
            computed = [row.computed for row in rows]
            results = take_computed(segments, computed, self._columns[task])
        self._pass.run_received(piece, task, arrived, segments, results)
        drop_tracebacks(*results[1].values() if results else ())
        for origin, (bits, missing) in self._sink.close(piece).items():
            root = int(roots[origin])
            row = ShuffleRow(root, ShuffleRowKind.LEDGER, task, root, generation, 0, bits, missing)
            self._sink.rows.append(row)
