"""A batch in plain Python: trees grown one by one, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .acks import Acker, Verdict
from .attempts import is_kept, keep, refuse, tell, to_attempt
from .delivered import Delivered
from .job import Segment
from .media.medium import Undecodable
from .program import Program
from .records import FailedRoot
from .tree import Failure, Tree, grow
from .windows import Delta, DeltaMaker


class Batch:
    """What some deliveries come to."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._acker = Acker()
        self._trees: list[tuple[Delivered, Tree, bytes]] = []
        self._failed: list[FailedRoot] = []
        self._windows = DeltaMaker(program.plan)
        self._unwritable: set[int] = set()

    def take(self, delivered: Delivered, now_ms: int) -> None:
        """Run the job on one root."""
        if isinstance(delivered.segment, Undecodable):
            self._refuse(delivered, delivered.segment, now_ms)
            return
        # Now, because functions may change what they are given.
        payload = keep(delivered.segment, delivered.raw)
        if self._program.is_staged and not is_kept(payload):
            found = Undecodable(delivered.raw, "it cannot go from one stage to the next")
            self._refuse(delivered, found, now_ms)
            return
        tree = grow(
            self._program,
            delivered.task,
            delivered.root,
            delivered.generation,
            delivered.segment,
        )
        for report in tree.reports:
            self._acker.add(report)
        self._trees.append((delivered, tree, payload))

    def _refuse(self, delivered: Delivered, found: Undecodable, now_ms: int) -> None:
        root, task, generation = delivered.root, delivered.task, delivered.generation
        self._failed.append(refuse(root, task, generation, found, now_ms))

    def written(self, task: str) -> tuple[list[int], list[Segment]]:
        """What is for an output, with its ids, without what it has already."""
        ids, segments = [], []
        for delivered, tree, _ in self._trees:
            for it in tree.outputs:
                if it.task != task or it.id in delivered.published or it.id in self._unwritable:
                    continue
                ids.append(it.id)
                segments.append(it.segment)
        return ids, segments

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Some of what is for an output can never be written there."""
        self._unwritable |= reasons.keys()
        for _, tree, _ in self._trees:
            for it in tree.outputs:
                if it.id in reasons:
                    self._acker.add(tree.report_unwritten(it, reasons[it.id]))

    def on_written(self, tasks: Iterable[str]) -> None:
        """What was for some outputs is where it cannot be lost."""
        names = set(tasks)
        for _, tree, _ in self._trees:
            for it in tree.outputs:
                if it.task in names and it.id not in self._unwritable:
                    self._acker.add(tree.report_written(it.task, it.edge))

    def close(self, now_ms: int) -> tuple[list[FailedRoot], Delta]:
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
        self, delivered: Delivered, tree: Tree, payload: bytes, now_ms: int, verdict: Verdict
    ) -> FailedRoot:
        failures = [(it.task, tell(it.error)) for it in tree.failures]
        attempt = to_attempt(tree.generation, now_ms, delivered.task, failures, verdict.missing)
        made = (it.id for it in tree.outputs if it.id not in self._unwritable)
        published = [*delivered.published, *made]
        return FailedRoot(
            tree.root,
            delivered.task,
            tree.generation,
            payload,
            attempt,
            sorted(set(published)),
            is_hopeless=not is_kept(payload),
        )

    def _add_to_windows(self, tree: Tree, verdict: Verdict) -> Verdict:
        """All that a root adds, or nothing of it."""
        if not tree.additions:
            return verdict
        one = DeltaMaker(self._program.plan)
        for it in tree.additions:
            try:
                one.add(it.task, it.group, it.segment, order=it.order)
            except Exception as error:
                failure = Failure(it.task, it.edge, it.segment, error.with_traceback(None))
                tree.failures.append(failure)
                return verdict._replace(has_failed=True)
        self._windows.merge(one.delta)
        return verdict
