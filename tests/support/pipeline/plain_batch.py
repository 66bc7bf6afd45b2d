"""A batch in plain Python: trees grown one by one, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    UndecodableRecord,
    UnwritableSegmentsError,
)
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    RootInput,
    can_retry,
    describe_exception,
    encode_for_retry,
    make_failed_attempt,
    reject_undecodable,
)
from postroad.pipeline.job import Segment
from postroad.pipeline.windows import JobWindowDelta, WindowDeltaBuilder
from tests.support.pipeline.acker import Acker, AckStatus
from tests.support.pipeline.tree import SegmentTree, TaskFailure, execute_tree


class PlainBatchExecutor:
    """What some deliveries come to."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self._acker = Acker()
        self._trees: list[tuple[RootInput, SegmentTree, bytes]] = []
        self._failed: list[FailedRoot] = []
        self._windows = WindowDeltaBuilder(program.windows)
        self._unwritable: set[int] = set()

    def process(self, delivered: RootInput, now_ms: int) -> None:
        """Run the job on one root."""
        if isinstance(delivered.segment, UndecodableRecord):
            self._refuse(delivered, delivered.segment, now_ms)
            return
        # Now, because functions may change what they are given.
        payload = encode_for_retry(delivered.segment, delivered.raw)
        if self._program.is_multi_stage and not can_retry(payload):
            found = UndecodableRecord(delivered.raw, "it cannot go from one stage to the next")
            self._refuse(delivered, found, now_ms)
            return
        tree = execute_tree(
            self._program,
            delivered.task,
            delivered.root,
            delivered.generation,
            delivered.segment,
        )
        for report in tree.reports:
            self._acker.add(report)
        self._trees.append((delivered, tree, payload))

    def _refuse(self, delivered: RootInput, found: UndecodableRecord, now_ms: int) -> None:
        root, task, generation = delivered.root, delivered.task, delivered.generation
        self._failed.append(reject_undecodable(root, task, generation, found, now_ms))

    def pending_output(self, task: str) -> tuple[list[int], list[Segment]]:
        """What is for an output, with its ids, without what it has already."""
        ids, segments = [], []
        for delivered, tree, _ in self._trees:
            for it in tree.outputs:
                if it.task != task or it.id in delivered.published or it.id in self._unwritable:
                    continue
                ids.append(it.id)
                segments.append(it.segment)
        return ids, segments

    def mark_unwritable(self, reasons: Mapping[int, str]) -> None:
        """Some of what is for an output can never be written there."""
        self._unwritable |= reasons.keys()
        for _, tree, _ in self._trees:
            for it in tree.outputs:
                if it.id in reasons:
                    self._acker.add(tree.report_unwritten(it, reasons[it.id]))

    def mark_written(self, tasks: Iterable[str]) -> None:
        """What was for some outputs is where it cannot be lost."""
        names = set(tasks)
        for _, tree, _ in self._trees:
            for it in tree.outputs:
                if it.task in names and it.id not in self._unwritable:
                    self._acker.add(tree.report_written(it.task, it.edge))

    def finish(self, now_ms: int) -> tuple[list[FailedRoot], JobWindowDelta]:
        """Roots that are not done with, and what those that are add to windows."""
        failed = list(self._failed)
        for delivered, tree, payload in self._trees:
            verdict = self._acker.verdict(tree.root, tree.generation)
            if verdict.is_done:
                verdict = self._add_to_windows(tree, verdict)
            if not verdict.is_done:
                failed.append(self._fail(delivered, tree, payload, now_ms, verdict))
        return failed, self._windows.delta

    def _fail(
        self,
        delivered: RootInput,
        tree: SegmentTree,
        payload: bytes,
        now_ms: int,
        verdict: AckStatus,
    ) -> FailedRoot:
        failures = [(it.task, describe_exception(it.error)) for it in tree.failures]
        attempt = make_failed_attempt(
            tree.generation, now_ms, delivered.task, failures, verdict.missing
        )
        made = (it.id for it in tree.outputs if it.id not in self._unwritable)
        published = [*delivered.published, *made]
        return FailedRoot(
            tree.root,
            delivered.task,
            tree.generation,
            payload,
            attempt,
            sorted(set(published)),
            is_permanent=not can_retry(payload),
        )

    def _add_to_windows(self, tree: SegmentTree, verdict: AckStatus) -> AckStatus:
        """All that a root adds, or nothing of it."""
        if not tree.additions:
            return verdict
        one = WindowDeltaBuilder(self._program.windows)
        for it in tree.additions:
            try:
                one.add(it.task, it.group, it.segment, order=it.order)
            except Exception as error:
                failure = TaskFailure(it.task, it.edge, it.segment, error.with_traceback(None))
                tree.failures.append(failure)
                return verdict._replace(has_failed=True)
        self._windows.merge(one.delta)
        return verdict


def write_batch_output(
    output: OutputConnector, stage: str, task: str, batch: PlainBatchExecutor
) -> Committable | None:
    """Stage what an output task can write; what it can never write has failed.

    Raises:
        OSError: it is not possible now, and nothing was staged.
    """
    stager = output.create_writer(stage)
    try:
        while True:
            try:
                ids, segments = batch.pending_output(task)
                if ids:
                    stager.write(ids, segments)
                return stager.prepare_commit()
            except UnwritableSegmentsError as error:
                batch.mark_unwritable(error.reasons)
    except BaseException:
        stager.abort()
        raise
