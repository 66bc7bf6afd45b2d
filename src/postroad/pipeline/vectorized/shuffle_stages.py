"""Jobs of several stages: what each pass takes from rows and leaves in rows."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from postroad.pipeline.vectorized.acks import EdgeBatch, Ids, Indexes
from postroad.pipeline.vectorized.decoding import (
    PIECE_SEGMENTS,
    DecodedRoots,
    decode_retries,
    decode_split,
)
from postroad.pipeline.vectorized.shuffle_columns import ShuffleColumns, to_columns
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

# So many keys are remembered with their shards.
_SHARDS_KEPT = 100_000

_encode_outputs: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
_encode_in_order = msgspec.msgpack.Encoder(order="deterministic").encode


class ShuffleSink:
    """Keeps what leaves a pass, as rows."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self._parts: list[ShuffleColumns] = []
        # Rows that are few.
        self.rows: list[ShuffleRow] = []
        # Where groups meet, by the task, the type of their keys, and the keys: what is equal may
        # not be the same, such as 1 and 1.0.
        self._shards: dict[tuple[str, type], dict[object, int]] = {}

    def add(self, rows: ShuffleColumns) -> None:
        """Keep many rows."""
        self._parts.append(rows)

    def send_downstream(
        self, piece: RootBatch, task: str, edges: EdgeBatch, segments: list[Segment]
    ) -> None:
        roots = piece.roots[edges.origins]
        try:
            shards = roots
            if self._program.graph.tasks[task].group_by is not None:
                shards = np.array(self._find_shards(task, segments), dtype=np.uint64)
            payload = list(map(encode_segment, segments))
        except Exception:
            self._send_one_by_one(piece, task, edges, segments)
            return
        self.add(
            ShuffleColumns.same(
                ShuffleRowKind.SEGMENT,
                task,
                roots,
                piece.generation,
                shard=shards,
                edge=edges.ids,
                payload=payload,
            )
        )

    def _send_one_by_one(
        self, piece: RootBatch, task: str, edges: EdgeBatch, segments: list[Segment]
    ) -> None:
        """Send those that can be sent; the others have failed."""
        is_grouped = self._program.graph.tasks[task].group_by is not None
        for place, segment in enumerate(segments):
            origin = int(edges.origins[place])
            root, edge = int(piece.roots[origin]), int(edges.ids[place])
            try:
                shard = self._find_shards(task, [segment])[0] if is_grouped else root
                payload = encode_segment(segment)
            except Exception as error:
                piece.failures.append(SegmentFailure(origin, task, error.with_traceback(None)))
                continue
            row = ShuffleRow(
                shard, ShuffleRowKind.SEGMENT, task, root, piece.generation, edge, payload=payload
            )
            self.rows.append(row)

    def _find_shards(self, task: str, segments: Sequence[Segment]) -> list[int]:
        """Where segments meet others of their groups."""
        keys = self._program.graph.tasks[task].group_by
        groups = [group_key(keys, segment) for segment in segments]
        types = set(map(type, groups))
        if len(types) != 1 or not types <= {str, int}:
            return [self._find_shard(task, group) for group in groups]
        shards = self._shards.setdefault((task, types.pop()), {})
        for group in dict.fromkeys(groups):
            if group not in shards:
                if len(shards) >= _SHARDS_KEPT:
                    shards.clear()
                    return [self._find_shard(task, group) for group in groups]
                shards[group] = self._find_shard(task, group)
        return list(map(shards.__getitem__, groups))

    def _find_shard(self, task: str, group: object) -> int:
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
        self._put(piece, task, edges, outputs)
        # What was made is taken when it is written; where nothing was made, now.
        piece.ledger.mark_processed(edges, sorted({*outputs, *made.failed}))

    def _put(
        self,
        piece: RootBatch,
        task: str,
        edges: EdgeBatch,
        outputs: Mapping[int, list[tuple[int, Segment]]],
    ) -> None:
        places = np.fromiter(outputs, dtype=np.intp, count=len(outputs))
        origins = edges.origins[places]
        lacking = np.zeros(len(outputs), dtype=np.int64)
        try:
            payload = list(map(_encode_outputs, outputs.values()))
        except Exception:
            payload = []
            for row, (origin, those) in enumerate(
                zip(origins.tolist(), outputs.values(), strict=True)
            ):
                kept = [it for it in those if _is_writable(piece, task, origin, it)]
                payload.append(_encode_outputs(kept))
                lacking[row] = len(those) - len(kept)
        self.add(
            ShuffleColumns.same(
                ShuffleRowKind.OUTPUT,
                task,
                piece.roots[origins],
                piece.generation,
                edge=edges.ids[places],
                missing=lacking,
                payload=payload,
            )
        )

    def close(self, piece: RootBatch) -> tuple[Ids, Indexes]:
        """Leave what else is to be told of a piece; returns what is left over of its roots: their
        bits, and how much is missing."""
        places, open_bits, open_count = piece.ledger.unacked_columns()
        bits = np.zeros(len(piece.roots), dtype=np.uint64)
        missing = np.zeros(len(piece.roots), dtype=np.intp)
        bits[places], missing[places] = open_bits, open_count
        # A root is not done with before a row makes up for what is missing, if there is such a row.
        for origin, addition in piece.additions:
            try:
                payload = msgspec.msgpack.encode(addition[1:])
            except Exception as error:
                piece.failures.append(SegmentFailure(origin, addition.task, error))
                continue
            self._tell(piece, origin, ShuffleRowKind.ADDITION, addition.task, payload, -1)
            missing[origin] += 1
        for failure in piece.failures:
            self._tell(
                piece,
                failure.origin,
                ShuffleRowKind.FAILURE,
                failure.task,
                describe_exception(failure.error).encode(),
            )
            missing[failure.origin] += 1
        return bits, missing

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

    def take(self) -> ShuffleColumns:
        """The rows, which are then somebody else's."""
        few = [ShuffleColumns.of_rows(self.rows)] if self.rows else []
        parts, self._parts, self.rows = [*self._parts, *few], [], []
        return ShuffleColumns.concat(parts)


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
    ) -> Iterator[Iterable[ShuffleRow]]:
        """Work on a split; gives rows, piece by piece."""
        return self._take(
            number, task, decode_split(self._program, task, generation, connector, chunks)
        )

    def process_retries(
        self, number: int, task: str, roots: Iterable[RetryRoot]
    ) -> Iterator[Iterable[ShuffleRow]]:
        """Work on roots that come again; gives rows, piece by piece."""
        return self._take(number, task, decode_retries(task, roots))

    def _take(
        self, number: int, task: str, pieces: Iterable[DecodedRoots]
    ) -> Iterator[Iterable[ShuffleRow]]:
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

    def process(self, task: str, read: DecodedRoots) -> ShuffleColumns:
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
        payloads = read.kept or list(map(encode_for_retry, read.segments, read.raws))
        piece = RootBatch(self._program, read.roots, read.generation)
        self._pass.run_roots(piece, task, read.segments)
        bits, missing = self._sink.close(piece)
        again = np.fromiter(sorted(read.published), dtype=np.intp)
        for place in again.tolist():
            payloads[place] = msgspec.msgpack.encode((payloads[place], read.published[place]))
        rows = ShuffleColumns.same(
            ShuffleRowKind.ROOT,
            task,
            piece.roots,
            read.generation,
            bits=bits,
            missing=missing,
            payload=payloads,
        )
        rows.kind[again] = ShuffleRowKind.AGAIN
        self._sink.add(rows)


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

    def take(self, rows: Iterable[ShuffleRow]) -> Iterator[ShuffleColumns]:
        """Work on rows; gives others."""
        columns = to_columns(rows)
        stages = np.array([self._program.graph.stage_of.get(it, -1) for it in columns.tasks])
        is_segment = columns.kind == ShuffleRowKind.SEGMENT
        is_mine = is_segment & (stages[columns.task] == self._stage) if len(columns) else is_segment
        if not is_mine.all():
            others = columns.select(np.flatnonzero(~is_mine))
            others.shard = np.where(is_segment[~is_mine], others.shard, others.root)
            yield others
        for code, task in enumerate(columns.tasks):
            of_task = is_mine & (columns.task == code)
            for generation in np.unique(columns.generation[of_task]).tolist():
                places = np.flatnonzero(of_task & (columns.generation == generation))
                for start in range(0, len(places), PIECE_SEGMENTS):
                    piece = columns.select(places[start : start + PIECE_SEGMENTS])
                    self._take_piece(task, generation, piece)
                    yield self._sink.take()

    def finish(self) -> list[ShuffleRow]:
        """What is to be told at the end."""
        return _to_rows(self._pass.counts)

    def _take_piece(self, task: str, generation: int, rows: ShuffleColumns) -> None:
        roots, origins = np.unique(rows.root, return_inverse=True)
        piece = RootBatch(self._program, roots, generation)
        segments, raised = map_function(decode_any, rows.payload)
        for place, error in raised.items():
            piece.failures.append(SegmentFailure(int(origins[place]), task, error))
        drop_tracebacks(*raised.values())
        if raised:
            kept = [place for place in range(len(rows)) if place not in raised]
            rows, origins = rows.select(np.array(kept, dtype=np.intp)), origins[kept]
            segments = [segments[place] for place in kept]
        arrived = piece.ledger.add_received(rows.edge, origins)
        results = None
        if task in self._program.sql_tasks:
            computed = rows.computed or [None] * len(rows)
            results = take_computed(segments, computed, self._columns[task])
        self._pass.run_received(piece, task, arrived, segments, results)
        drop_tracebacks(*results[1].values() if results else ())
        bits, missing = self._sink.close(piece)
        left = np.flatnonzero((bits != 0) | (missing != 0))
        ledger = ShuffleColumns.same(
            ShuffleRowKind.LEDGER,
            task,
            roots[left],
            generation,
            bits=bits[left],
            missing=missing[left],
        )
        self._sink.add(ledger)
