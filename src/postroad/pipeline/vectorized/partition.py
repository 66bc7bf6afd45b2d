"""Processes one partition of a batch and writes its output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import msgspec
import numpy as np

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    AnySegment,
    Committable,
    InputConnector,
    OutputConnector,
    OutputWriter,
    RawRecords,
    UnwritableSegmentsError,
)
from postroad.pipeline.coordinator.committer import writer_id
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    RetryRoot,
    can_retry,
    describe_exception,
    make_failed_attempt,
)
from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.acks import EdgeBatch, Ids, Indexes, LazyIds
from postroad.pipeline.vectorized.decoding import DecodedRoots, decode_retries, decode_split, now_ms
from postroad.pipeline.vectorized.groups import GroupBatch, GroupMember
from postroad.pipeline.vectorized.root_accounts import RootAccount, RootAccounts
from postroad.pipeline.vectorized.shuffle_columns import to_columns
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from postroad.pipeline.vectorized.stage_executor import (
    RootBatch,
    SegmentFailure,
    StageExecutor,
    WindowInput,
)
from postroad.pipeline.vectorized.task_calls import TaskOutput, drop_tracebacks, map_function
from postroad.pipeline.windows import JobWindowDelta, WindowDeltaBuilder


class PartitionExecutor:
    """A part of a batch.

    Args:
        program: the job.
        outputs: by the names of their tasks.
        name: one that no other part has.
    """

    def __init__(
        self, program: CompiledJob, outputs: Mapping[str, OutputConnector], name: str
    ) -> None:
        self._program = program
        self._sink = OutputSink(program.job.name, name, outputs)
        self._windows = WindowDeltaBuilder(program.windows)
        self._outcome = PartitionResult()

    def _add_to_windows(self, additions: Sequence[WindowInput]) -> tuple[str, Exception] | None:
        """All that a root adds, or nothing of it; returns the task that failed, and with what."""
        delta = self._window_delta(additions)
        if not isinstance(delta, JobWindowDelta):
            return delta
        self._windows.merge(delta)
        return None

    def _window_delta(
        self, additions: Sequence[WindowInput]
    ) -> JobWindowDelta | tuple[str, Exception]:
        one = WindowDeltaBuilder(self._program.windows)
        for it in additions:
            try:
                one.add(it.task, it.group, it.segment, order=it.order)
            except Exception as error:
                drop_tracebacks(error)
                return it.task, error
        return one.delta

    def _fail(
        self,
        root: int,
        task: str,
        generation: int,
        segment: bytes,
        failures: Sequence[tuple[str, str]],
        missing: int,
        published: Iterable[int],
    ) -> None:
        """A root is not done with."""
        attempt = make_failed_attempt(generation, now_ms(), task, failures, missing)
        ids = sorted(set(published))
        failed = FailedRoot(
            root, task, generation, segment, attempt, ids, is_permanent=not can_retry(segment)
        )
        self._outcome.failed.append(failed)

    def finish(self) -> PartitionResult:
        """Stage everything for good; returns what it came to."""
        self._outcome.staged = self._sink.prepare_commit()
        self._outcome.delta = self._windows.delta
        return self._outcome

    def abort(self) -> None:
        """Throw away what was staged."""
        self._sink.abort()


class SingleStagePartition(PartitionExecutor):
    """Works on some deliveries, and accounts for them."""

    def __init__(
        self, program: CompiledJob, outputs: Mapping[str, OutputConnector], name: str
    ) -> None:
        super().__init__(program, outputs, name)
        self._pass = StageExecutor(program, 0, self._sink)

    def process_split(
        self,
        number: int,
        task: str,
        generation: int,
        connector: InputConnector,
        chunks: Iterable[RawRecords],
    ) -> None:
        """Work on a slice of an input."""
        self._take(number, task, decode_split(self._program, task, generation, connector, chunks))

    def process_retries(self, number: int, task: str, roots: Iterable[RetryRoot]) -> None:
        """Work on roots that come again."""
        self._take(number, task, decode_retries(task, roots))

    def _take(self, number: int, task: str, pieces: Iterable[DecodedRoots]) -> None:
        self.complete(number)
        for read in pieces:
            self.process(task, read)

    def process(self, task: str, read: DecodedRoots) -> None:
        """Work on roots, and account for them."""
        self._outcome.segments += read.total
        self._outcome.failed += read.rejected
        piece = RootBatch(self._program, read.roots, read.generation, read.published)
        self._pass.run_roots(piece, task, read.segments)
        self._close(piece, task, read)

    def count_read(self, segments: int) -> None:
        """So many of the roots came from Spark's readers, and belong to no delivery."""
        self._outcome.read += segments

    def complete(self, number: int) -> None:
        """All of a delivery is here."""
        self._outcome.deliveries.append(number)

    def _close(self, piece: RootBatch, task: str, read: DecodedRoots) -> None:
        """Account for the roots of a piece."""
        residues = piece.ledger.unacked()
        failures: dict[int, list[tuple[str, str]]] = {}
        for it in piece.failures:
            failures.setdefault(it.origin, []).append((it.task, describe_exception(it.error)))
        for place, additions in _by_origin(piece.additions).items():
            # Only if the rest of it is done.
            if place in residues or place in failures:
                continue
            if (failure := self._add_to_windows(additions)) is not None:
                failures[place] = [(failure[0], describe_exception(failure[1]))]
        failed = sorted(residues.keys() | failures.keys())
        published = self._sink.take_written_ids(failed)
        for place in failed:
            self._fail(
                int(piece.roots[place]),
                task,
                piece.generation,
                read.encode_for_retry(place),
                failures.get(place, ()),
                residues[place].missing if place in residues else 0,
                [*piece.published.get(place, ()), *published[place]],
            )


def _by_origin(additions: Iterable[tuple[int, WindowInput]]) -> dict[int, list[WindowInput]]:
    found: dict[int, list[WindowInput]] = {}
    for origin, addition in additions:
        found.setdefault(origin, []).append(addition)
    return found


_decode_outputs = msgspec.msgpack.Decoder(list[tuple[int, AnySegment]]).decode
_decode_failed = msgspec.msgpack.Decoder(FailedRoot).decode

_WRITE_SEGMENTS = 4096


class ShuffledPartition(PartitionExecutor):
    """Takes rows, and accounts for their roots."""

    def __init__(
        self, program: CompiledJob, outputs: Mapping[str, OutputConnector], name: str
    ) -> None:
        super().__init__(program, outputs, name)
        self._groups = GroupBatch(program)

    def take_rows(self, rows: Iterable[ShuffleRow]) -> None:
        """Take all rows of some roots; those that come twice count once."""
        columns = to_columns(rows).unique()
        is_note = np.isin(columns.kind, (ShuffleRowKind.DELIVERY, ShuffleRowKind.REFUSED))
        for place in np.flatnonzero(is_note).tolist():
            self._take_note(columns.row(place))
        if is_note.any():
            columns = columns.select(np.flatnonzero(~is_note))
        roots = RootAccounts(columns)
        is_output = columns.kind == ShuffleRowKind.OUTPUT
        for code, task in enumerate(columns.tasks):
            places = np.flatnonzero(is_output & (columns.task == code))
            for start in range(0, len(places), _WRITE_SEGMENTS):
                self._put_out(task, places[start : start + _WRITE_SEGMENTS], roots)
        for id, root in roots.unfinished():
            self._close(id, root)

    def _take_note(self, row: ShuffleRow) -> None:
        if row.kind == ShuffleRowKind.REFUSED:
            self._outcome.failed.append(_decode_failed(row.payload))
            return
        if row.edge:
            self._outcome.deliveries.append(row.edge)
        else:
            self._outcome.read += row.missing
        self._outcome.segments += row.missing

    def _put_out(self, task: str, places: Indexes, roots: RootAccounts) -> None:
        owners, payload = roots.place[places], roots.rows.payload
        made, raised = map_function(_decode_outputs, [payload[at] for at in places.tolist()])
        for at, error in raised.items():
            roots.account(int(owners[at])).failures.append((task, describe_exception(error)))
            made[at] = []
        if roots.published:
            made = [
                [it for it in those if it[0] not in roots.published.get(owner, ())]
                for owner, those in zip(owners.tolist(), made, strict=True)
            ]
        ids = [id for those in made for id, _ in those]
        segments = [segment for those in made for _, segment in those]
        refused = self._sink.write(task, ids, segments)
        is_written = np.ones(len(places), dtype=bool)
        for at, those in enumerate(made if refused else ()):
            reasons = [refused[id] for id, _ in those if id in refused]
            if reasons:
                is_written[at] = False
                failures = roots.account(int(owners[at])).failures
                failures += [(task, f"TypeError: it cannot be written: {it}") for it in reasons]
        written = [[id for id, _ in those if id not in refused] for those in made]
        roots.written.append((owners, written))
        roots.acknowledge(places[is_written])

    def finish(self) -> PartitionResult:
        """Call functions of groups, and stage everything for good; returns what it came to."""
        self._outcome.emitted, self._outcome.states = self._groups.run()
        return super().finish()

    def _close(self, id: int, root: RootAccount) -> None:
        tasks = self._program.group_tasks
        if root.is_done and any(it.task in tasks for it in root.additions):
            self._add_to_groups(id, root)
            return
        failure = self._add_to_windows(root.additions) if root.is_done else None
        if failure is not None:
            root.failures = [(failure[0], describe_exception(failure[1]))]
        if root.is_done:
            return
        self._fail_root(id, root)

    def _add_to_groups(self, id: int, root: RootAccount) -> None:
        """A root is done with if its groups are, and adds to windows only then."""

        def fail(task: str, error: Exception) -> None:
            root.failures.append((task, describe_exception(error)))
            self._fail_root(id, root)

        tasks = self._program.group_tasks
        delta = self._window_delta([it for it in root.additions if it.task not in tasks])
        if isinstance(delta, JobWindowDelta):
            members = [it for it in root.additions if it.task in tasks]
            confirm = partial(self._windows.merge, delta)
            self._groups.add(GroupMember(members, confirm, fail))
        else:
            fail(*delta)

    def _fail_root(self, id: int, root: RootAccount) -> None:
        if root.task is None:
            raise RuntimeError(f"rows of the root {id:016x} came without it")
        self._fail(
            id,
            root.task,
            root.generation,
            root.segment,
            root.failures,
            root.missing,
            [*root.published, *root.put],
        )


class PartitionResult(msgspec.Struct):
    """What a part of a batch came to."""

    deliveries: list[int] = []
    """Numbers."""
    failed: list[FailedRoot] = []
    staged: list[tuple[str, Committable]] = []
    delta: JobWindowDelta = msgspec.field(default_factory=JobWindowDelta)
    segments: int = 0
    """Roots that it had."""
    read: int = 0
    """Those of them that one of Spark's readers gave."""
    emitted: list[tuple[int, str, bytes]] = []
    """New roots that functions of groups made, each with its task and segment."""
    states: list[tuple[str, bytes, bytes | None]] = []
    """States of groups that changed, each with its task and key."""


encode_part = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(PartitionResult).decode


class OutputSink:
    """Stages what a part of a batch writes.

    Args:
        job: the job's name.
        part: a name that no other part has.
        outputs: by the names of their tasks.
    """

    def __init__(self, job: str, part: str, outputs: Mapping[str, OutputConnector]) -> None:
        self._job = job
        self._part = part
        self._outputs = outputs
        self._stagers: dict[str, OutputWriter] = {}
        self._put: list[tuple[Indexes, Ids]] = []

    def send_downstream(
        self, piece: RootBatch, task: str, edges: EdgeBatch, segments: list[Segment]
    ) -> None:
        raise AssertionError(f"{task!r} is of a later stage, and there is none")

    def write_output(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> None:
        ids = piece.output_ids(edges, task, made)
        origins = edges.origins if made.parents is None else edges.origins[made.parents]
        failed = set(made.failed)
        segments = made.segments
        parents = made.parents
        if piece.published:
            done = np.fromiter(chain.from_iterable(piece.published.values()), dtype=np.uint64)
            new = np.flatnonzero(np.isin(ids, done, invert=True))
            segments = [segments[place] for place in new.tolist()]
            ids, origins = ids[new], origins[new]
            parents = new if parents is None else parents[new]
        reasons = self.write(task, LazyIds(ids), segments)
        if reasons:
            bad = np.flatnonzero(np.isin(ids, np.array(list(reasons), dtype=np.uint64)))
            for place in bad.tolist():
                error = TypeError(f"it cannot be written: {reasons[int(ids[place])]}")
                piece.failures.append(SegmentFailure(int(origins[place]), task, error))
                failed.add(place if parents is None else int(parents[place]))
            origins, ids = np.delete(origins, bad), np.delete(ids, bad)
        self._put.append((origins, ids))
        piece.ledger.mark_processed(edges, sorted(failed))

    def write(self, task: str, ids: Sequence[int], segments: list[Segment]) -> dict[int, str]:
        """Write what can be written; returns why the rest cannot be."""
        refused: dict[int, str] = {}
        while ids:
            stager = self._stagers.get(task)
            if stager is None:
                name = writer_id(self._job, self._part, task)
                stager = self._stagers[task] = self._outputs[task].create_writer(name)
            try:
                stager.write(ids, segments)
                break
            except UnwritableSegmentsError as error:
                refused |= error.reasons
                kept = [at for at, id in enumerate(ids) if id not in error.reasons]
                if len(kept) == len(ids):
                    raise AssertionError(f"{task!r} refuses what it was not given") from error
                ids, segments = [ids[at] for at in kept], [segments[at] for at in kept]
        return refused

    def take_written_ids(self, origins: Sequence[int]) -> dict[int, list[int]]:
        """Ids of what was written since the last time, for some roots of the piece."""
        put, self._put = self._put, []
        found: dict[int, list[int]] = {origin: [] for origin in origins}
        if not found:
            return found
        wanted = np.zeros(1 + max(found), dtype=bool)
        wanted[list(found)] = True
        for places, ids in put:
            chosen = wanted[np.minimum(places, len(wanted) - 1)] & (places < len(wanted))
            for origin, id in zip(places[chosen].tolist(), ids[chosen].tolist(), strict=True):
                found[origin].append(id)
        return found

    def prepare_commit(self) -> list[tuple[str, Committable]]:
        """Have everything where a crash does not lose it."""
        staged = [(task, stager.prepare_commit()) for task, stager in self._stagers.items()]
        return [(task, it) for task, it in staged if it is not None]

    def abort(self) -> None:
        """Throw everything away."""
        for stager in self._stagers.values():
            stager.abort()
