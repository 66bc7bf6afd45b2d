"""Processes one partition of a batch and writes its output."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    AnySegment,
    Committable,
    InputConnector,
    OutputConnector,
    RawRecords,
    decode_segment,
)
from postroad.pipeline.coordinator.progress import TaskCounts, add_counts
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    RetryRoot,
    can_retry,
    describe_exception,
    make_failed_attempt,
)
from postroad.pipeline.coordinator.window_deltas import WindowFile
from postroad.pipeline.vectorized.acks import Indexes
from postroad.pipeline.vectorized.decoding import DecodedRoots, decode_retries, decode_split, now_ms
from postroad.pipeline.vectorized.groups import GatheredSegment, GroupBatch
from postroad.pipeline.vectorized.output_sink import OutputSink
from postroad.pipeline.vectorized.root_accounts import RootAccount, RootAccounts
from postroad.pipeline.vectorized.shuffle_columns import to_columns
from postroad.pipeline.vectorized.shuffle_rows import ShuffleRow, ShuffleRowKind
from postroad.pipeline.vectorized.stage_executor import (
    RootBatch,
    StageExecutor,
    WindowInput,
)
from postroad.pipeline.vectorized.task_calls import drop_tracebacks, map_function
from postroad.pipeline.windows import JobWindowDelta, WindowDeltaBuilder
from postroad.pipeline.windows.partials import PartialAddition, PartialPanes, PartialWindow


class PartitionExecutor:
    """A part of a batch.

    Args:
        program: the job.
        outputs: by the names of their tasks.
        name: one that no other part has.
        partial: names of the windows that somebody else puts together.
        gather: takes what is for functions that take all of a batch; without it, those of groups
            are called with what this part has.
    """

    def __init__(
        self,
        program: CompiledJob,
        outputs: Mapping[str, OutputConnector],
        name: str,
        partial: Collection[str] = (),
        *,
        gather: Callable[[GatheredSegment], None] | None = None,
    ) -> None:
        self._program = program
        self._sink = OutputSink(program.job.name, name, outputs)
        self._plan = program.windows.select(partial, inverted=True) if partial else program.windows
        self._windows = WindowDeltaBuilder(self._plan)
        chosen = [program.windows.by_name[name] for name in partial]
        self.panes = {it.name: PartialPanes(PartialWindow(it)) for it in chosen}
        """What is added to those."""
        self._panes_of_tasks: dict[str, list[PartialPanes]] = {}
        for panes in self.panes.values():
            self._panes_of_tasks.setdefault(panes.window.window.window.task, []).append(panes)
        self._outcome = PartitionResult()
        self.groups = GroupBatch(program)
        self._gather = gather or self.groups.add

    def _add_to_windows(self, additions: Sequence[WindowInput]) -> tuple[str, Exception] | None:
        """All that a root adds, or nothing of it; returns the task that failed, and with what."""
        one = WindowDeltaBuilder(self._plan) if self._plan.windows else None
        parts: list[tuple[PartialPanes, PartialAddition]] = []
        for it in additions:
            if it.task in self._program.gathering_tasks:
                continue
            try:
                parts += [
                    (panes, panes.window.prepare(it.group, it.segment, it.order))
                    for panes in self._panes_of_tasks.get(it.task, ())
                ]
                if one is not None:
                    one.add(it.task, it.group, it.segment, order=it.order)
            except Exception as error:
                drop_tracebacks(error)
                return it.task, error
        for panes, part in parts:
            panes.add(part)
        if one is not None:
            self._windows.merge(one.delta)
        return None

    def _without_published(
        self, additions: Sequence[WindowInput], published: Iterable[int]
    ) -> Sequence[WindowInput]:
        """Additions but for those that an earlier delivery of their root made."""
        done = frozenset(published)
        return [it for it in additions if self._addition_id(it) not in done] if done else additions

    def _addition_id(self, addition: WindowInput) -> int:
        task = addition.task
        return self._program.ack_ids.edge(addition.edge, task, task, addition.ordinal)

    def _gather_all(
        self,
        additions: Sequence[WindowInput],
        root: int,
        entry: str,
        generation: int,
        kept: bytes,
        published: Iterable[int],
    ) -> None:
        """A root is done with but for functions that take all of a batch."""
        ids = [self._addition_id(it) for it in additions]
        every = sorted({*published, *ids})
        for id, it in zip(ids, additions, strict=True):
            if it.task in self._program.gathering_tasks:
                rest = (id, it.task, it.order, it.group, it.segment)
                self._gather(GatheredSegment(root, entry, generation, kept, every, *rest))

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
        """Call functions of groups, and stage everything for good; returns what it came to."""
        failed, emitted, self._outcome.states = self.groups.run(now_ms())
        add_counts(self._outcome.tasks, self.groups.counts)
        self._outcome.failed += failed
        self._take_emitted(emitted)
        self._outcome.staged = self._sink.prepare_commit()
        self._outcome.delta = self._windows.delta
        return self._outcome

    def _take_emitted(self, emitted: list[tuple[int, str, bytes]]) -> None:
        """Have new roots come in with a later batch."""
        self._outcome.emitted += emitted

    def abort(self) -> None:
        """Throw away what was staged."""
        self._sink.abort()


class SingleStagePartition(PartitionExecutor):
    """Works on some deliveries, and accounts for them."""

    def __init__(
        self,
        program: CompiledJob,
        outputs: Mapping[str, OutputConnector],
        name: str,
        partial: Collection[str] = (),
        *,
        gather: Callable[[GatheredSegment], None] | None = None,
    ) -> None:
        super().__init__(program, outputs, name, partial, gather=gather)
        self._pass = StageExecutor(program, 0, self._sink)
        self._outcome.tasks = self._pass.counts

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

    def count_made(self, segments: int) -> None:
        """So many of the roots are new ones that functions made."""
        self._outcome.made += segments

    def _take_emitted(self, emitted: list[tuple[int, str, bytes]]) -> None:
        """Have new roots go on at once, where what follows is known here."""
        by_task: dict[str, list[tuple[int, str, bytes]]] = {}
        for it in emitted:
            by_task.setdefault(it[1], []).append(it)
        for task, those in by_task.items():
            if not self._program.runs_results_at_once(task):
                super()._take_emitted(those)
                continue
            raws = [raw for _, _, raw in those]
            ids = np.array([id for id, _, _ in those], dtype=np.uint64)
            segments = [decode_segment(raw) for raw in raws]
            self.process(task, DecodedRoots(0, ids, raws, segments, [], decode_segment))
            self.count_made(len(those))

    def complete(self, number: int) -> None:
        """All of a delivery is here."""
        self._outcome.deliveries.append(number)

    def _close(self, piece: RootBatch, task: str, read: DecodedRoots) -> None:
        """Account for the roots of a piece."""
        residues = piece.ledger.unacked()
        failures: dict[int, list[tuple[str, str]]] = {}
        for it in piece.failures:
            failures.setdefault(it.origin, []).append((it.task, describe_exception(it.error)))
        gathered: dict[int, Sequence[WindowInput]] = {}
        for place, added in _by_origin(piece.additions).items():
            # Only if the rest of it is done.
            if place in residues or place in failures:
                continue
            additions = self._without_published(added, piece.published.get(place, ()))
            if (failure := self._add_to_windows(additions)) is not None:
                failures[place] = [(failure[0], describe_exception(failure[1]))]
            elif self._program.gathering_tasks:
                gathered[place] = additions
        failed = sorted(residues.keys() | failures.keys())
        published = self._sink.take_written_ids([*failed, *gathered])
        for place, additions in gathered.items():
            self._gather_all(
                additions,
                int(piece.roots[place]),
                task,
                piece.generation,
                read.encode_for_retry(place),
                [*piece.published.get(place, ()), *published[place]],
            )
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
_decode_counts = msgspec.msgpack.Decoder(dict[str, TaskCounts]).decode
_decode_failed = msgspec.msgpack.Decoder(FailedRoot).decode

_WRITE_SEGMENTS = 4096
# Rows that are of no root.
_NOTES = (ShuffleRowKind.DELIVERY, ShuffleRowKind.REFUSED, ShuffleRowKind.COUNTS)


class ShuffledPartition(PartitionExecutor):
    """Takes rows, and accounts for their roots."""

    def take_rows(self, rows: Iterable[ShuffleRow]) -> None:
        """Take all rows of some roots; those that come twice count once."""
        columns = to_columns(rows).unique()
        is_note = np.isin(columns.kind, _NOTES)
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
        if row.kind == ShuffleRowKind.COUNTS:
            add_counts(self._outcome.tasks, _decode_counts(row.payload))
            return
        if row.edge:
            self._outcome.deliveries.append(row.edge)
        elif row.task:
            self._outcome.made += row.missing
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
        began_s = time.perf_counter()
        refused = self._sink.write(task, ids, segments)
        wrote = TaskCounts(0, len(refused), time.perf_counter() - began_s)
        add_counts(self._outcome.tasks, {task: wrote})
        is_written = np.ones(len(places), dtype=bool)
        for at, those in enumerate(made if refused else ()):
            reasons = [refused[id] for id, _ in those if id in refused]
            if reasons:
                is_written[at] = False
                failures = roots.account(int(owners[at])).failures
                failures += [(task, f"TypeError: it cannot be written: {it}") for it in reasons]
        of_ids = np.repeat(owners, np.fromiter(map(len, made), np.intp, len(made)))
        all_ids = np.array(ids, dtype=np.uint64)
        if refused:
            kept = np.isin(all_ids, np.array(list(refused), dtype=np.uint64), invert=True)
            of_ids, all_ids = of_ids[kept], all_ids[kept]
        roots.written.append((of_ids, all_ids))
        roots.acknowledge(places[is_written])

    def _close(self, id: int, root: RootAccount) -> None:
        additions = self._without_published(root.additions, root.published)
        failure = self._add_to_windows(additions) if root.is_done else None
        if failure is not None:
            root.failures = [(failure[0], describe_exception(failure[1]))]
        if root.task is None:
            raise RuntimeError(f"rows of the root {id:016x} came without it")
        published = [*root.published, *root.put]
        known = (root.task, root.generation, root.segment)
        if not root.is_done:
            self._fail(id, *known, root.failures, root.missing, published)
        elif self._program.gathering_tasks:
            self._gather_all(additions, id, *known, published)


class PartitionResult(msgspec.Struct):
    """What a part of a batch came to."""

    deliveries: list[int] = []
    """Numbers."""
    failed: list[FailedRoot] = []
    staged: list[tuple[str, Committable]] = []
    delta: JobWindowDelta = msgspec.field(default_factory=JobWindowDelta)
    window_files: list[WindowFile] = []
    """What it adds to windows that Spark keeps."""
    segments: int = 0
    """Roots that it had."""
    read: int = 0
    """Those of them that one of Spark's readers gave."""
    made: int = 0
    """Those of them that functions made in this batch."""
    emitted: list[tuple[int, str, bytes]] = []
    """New roots that functions of groups made, each with its task and segment."""
    states: list[tuple[str, bytes, bytes | None]] = []
    """States of groups that changed, each with its task and key."""
    tasks: dict[str, TaskCounts] = {}
    """What each task did."""


encode_part = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(PartitionResult).decode
